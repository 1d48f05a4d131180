"""Risk-coverage curves."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from babn import metrics
from babn.plots.plot_data import Predictions, Probabilities, as_array, by_method, naming
from babn.plots.sizes import DOUBLE, SINGLE, Size, figure_size
from babn.plots.style import (
    arranged,
    collected,
    drawing,
    in_percent,
    legend_above,
    line_look,
    new_figure,
)

NOISY = 0.1
"""Below this coverage a curve depends on few examples and is ignored for the scale."""

MANY = 6
"""Number of methods from which on the figure is two columns wide."""

IDEAL: dict[str, Any] = {"color": "0.7", "linewidth": 0.8}


@drawing
def risk_coverage(predictions: Predictions, labels: Tensor, *, size: Size = None) -> Figure:
    """Error rate among the most confident examples, over the share that is not rejected.

    The legend shows the area under each curve, which is the mean risk over all coverages. Grey
    curves show the optimal order, in which every correct prediction is more confident than every
    wrong one.

    Args:
        predictions: Probabilities of shape (example, label) or a prediction, or several by name.
        labels: The correct class of each example.
        size: Width in inches, or width and height.
    """
    methods = by_method(predictions)
    width = SINGLE if len(methods) < MANY else DOUBLE
    figure = new_figure(figure_size(size, width, lambda wide: min(0.45 * wide + 1.0, 3.0)))
    panel = figure.subplots()
    top = 0.0
    for i, (name, probs) in enumerate(methods.items()):
        with naming("predictions", name):
            top = max(top, _draw_method(panel, i, name, probs, labels))
    panel.plot([], [], label="ideal order", **IDEAL)
    panel.set(xlim=(0, 1), ylim=(0, 1.05 * top or 1), xlabel="coverage (%)", ylabel="risk (%)")
    in_percent(panel.xaxis, panel.yaxis)
    legend_above(figure, *collected(figure), title="in brackets: area under the curve (AURC)")
    return arranged(figure)


def _draw_method(panel: Axes, index: int, name: str, probs: Probabilities, labels: Tensor) -> float:
    """Draws the curve of a method and its optimal one; returns the maximum of the curve."""
    confidence, correct = metrics.confidence_and_correct(probs, labels)
    curve = metrics.risk_coverage(confidence, correct)
    ideal = metrics.risk_coverage(correct.double(), correct)
    label = f"{name or 'all predictions'} ({metrics.aurc(confidence, correct):.3f})"
    panel.plot(as_array(ideal.coverage), as_array(ideal.risk), zorder=1, **IDEAL)
    panel.plot(as_array(curve.coverage), as_array(curve.risk), label=label, **line_look(index))
    return float(curve.risk[curve.coverage >= NOISY].max())
