"""Figures of uncertainty, for papers and reports.

Every function returns a `matplotlib.figure.Figure` that is not registered with pyplot and need not
be closed. matplotlib is imported when a plot is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from babn.errors import MissingExtraError
from babn.plots.sizes import DOUBLE, SINGLE

if TYPE_CHECKING:
    from babn.plots.calibration import reliability_diagram as reliability_diagram
    from babn.plots.calibration import risk_coverage as risk_coverage
    from babn.plots.entropies import entropy_histogram as entropy_histogram
    from babn.plots.heat_maps import attention_figure as attention_figure
    from babn.plots.histories import kl_history as kl_history
    from babn.plots.histories import training_curves as training_curves
    from babn.plots.output import as_svg as as_svg
    from babn.plots.output import save as save
    from babn.plots.probabilities import class_probabilities as class_probabilities
    from babn.plots.ranks import critical_difference as critical_difference
    from babn.plots.regions import attention_on_image as attention_on_image

_HOMES = {
    "as_svg": "output",
    "attention_figure": "heat_maps",
    "attention_on_image": "regions",
    "class_probabilities": "probabilities",
    "critical_difference": "ranks",
    "entropy_histogram": "entropies",
    "kl_history": "histories",
    "reliability_diagram": "calibration",
    "risk_coverage": "calibration",
    "save": "output",
    "training_curves": "histories",
}

__all__ = ["DOUBLE", "SINGLE", *_HOMES]


def __dir__() -> list[str]:
    """All public names, those that are imported on first access included."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Imports what needs matplotlib on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module 'babn.plots' has no attribute {name!r}")
    try:
        return getattr(import_module(f"babn.plots.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise MissingExtraError(
            f"babn.plots.{name} needs matplotlib: pip install 'babn[plots]'"
        ) from error
