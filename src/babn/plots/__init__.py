"""Figures of uncertainty, for papers and reports.

Every function returns a `matplotlib.figure.Figure` that is not registered with pyplot and need not
be closed. matplotlib is imported when a plot is first used.
"""

from typing import TYPE_CHECKING, Any

from babn.errors import import_extra

if TYPE_CHECKING:
    from babn.plots.attention import attention_figure as attention_figure
    from babn.plots.figures import as_svg as as_svg
    from babn.plots.figures import save as save
    from babn.plots.predictions import entropy_histogram as entropy_histogram
    from babn.plots.predictions import reliability_diagram as reliability_diagram
    from babn.plots.predictions import risk_coverage as risk_coverage

SINGLE, DOUBLE = 3.3, 6.8
"""Widths of one and two columns of a printed page, in inches."""

_HOMES = {
    "as_svg": "figures",
    "attention_figure": "attention",
    "entropy_histogram": "predictions",
    "reliability_diagram": "predictions",
    "risk_coverage": "predictions",
    "save": "figures",
}

__all__ = ["DOUBLE", "SINGLE", *_HOMES]


def __dir__() -> list[str]:
    """All public names, those that are imported on first access included."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Imports what needs matplotlib on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module 'babn.plots' has no attribute {name!r}")
    need = f"babn.plots.{name} needs matplotlib"
    return getattr(import_extra(f"babn.plots.{_HOMES[name]}", need, "plots"), name)
