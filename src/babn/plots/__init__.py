"""Figures of uncertainty for papers and reports.

Every function gives a `matplotlib.figure.Figure` that belongs to nobody else: pyplot does not know
of it, so nothing has to be closed. matplotlib is loaded when a plot is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from babn.errors import MissingExtraError
from babn.plots.sizes import DOUBLE, SINGLE

if TYPE_CHECKING:
    from babn.plots.calibration import reliability_diagram
    from babn.plots.curves import training_curves
    from babn.plots.divergence import kl_history
    from babn.plots.entropies import entropy_histogram
    from babn.plots.files import save
    from babn.plots.heat_maps import attention_figure
    from babn.plots.inline import as_svg
    from babn.plots.probabilities import class_probabilities
    from babn.plots.regions import attention_on_image
    from babn.plots.selective import risk_coverage

__all__ = [
    "DOUBLE",
    "SINGLE",
    "as_svg",
    "attention_figure",
    "attention_on_image",
    "class_probabilities",
    "entropy_histogram",
    "kl_history",
    "reliability_diagram",
    "risk_coverage",
    "save",
    "training_curves",
]

_HOMES = {
    "as_svg": "inline",
    "attention_figure": "heat_maps",
    "attention_on_image": "regions",
    "class_probabilities": "probabilities",
    "entropy_histogram": "entropies",
    "kl_history": "divergence",
    "reliability_diagram": "calibration",
    "risk_coverage": "selective",
    "save": "files",
    "training_curves": "curves",
}


def __getattr__(name: str) -> Any:
    """Loads what needs matplotlib when it is first asked for."""
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
