"""Reliability diagrams and risk-coverage curves."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from babn import metrics
from babn.plots import style
from babn.plots.plot_data import Predictions, Probabilities, as_array, by_method, naming
from babn.plots.sizes import DOUBLE, SINGLE, Size, figure_size, given_width, grid
from babn.plots.style import drawing

PANEL = 1.3
"""Minimum width of a panel in inches."""

NOISY = 0.1
"""Below this coverage a curve depends on few examples and is ignored for the scale."""

MANY = 6
"""Number of methods from which on the figure is two columns wide."""

IDEAL: dict[str, Any] = {"color": "0.7", "linewidth": 0.8}


@drawing
def reliability_diagram(
    predictions: Predictions, labels: Tensor, bins: int = 10, *, size: Size = None
) -> Figure:
    r"""Accuracy against confidence, one panel for each method.

    In each bin of confidence a bar shows the accuracy, and a hatched bar the gap to the mean
    confidence. The expected calibration error is the mean length of the hatched bars, weighted by
    the shares of examples, which are shown below:

    $$\sum_b \mathrm{share}_b |\mathrm{acc}_b - \mathrm{conf}_b|$$

    Args:
        predictions: Probabilities of shape (example, label) or a prediction, or several by name.
        labels: The correct class of each example.
        bins: Number of equal-width bins.
        size: Width in inches, or width and height.
    """
    methods = by_method(predictions)
    width = given_width(size, SINGLE if len(methods) < 3 else DOUBLE)
    rows, columns = grid(len(methods), width, PANEL)
    tall = rows * max(0.95 * min(width / columns, SINGLE) + 0.35, 1.9) + 0.3
    figure = style.new_figure(figure_size(size, width, lambda _: tall))
    cells = figure.add_gridspec(2 * rows, columns, height_ratios=[4, 1] * rows)
    for i, (name, probs) in enumerate(methods.items()):
        row, column = divmod(i, columns)
        upper, lower = (figure.add_subplot(cells[2 * row + j, column]) for j in (0, 1))
        with naming("predictions", name):
            _draw_bins(upper, lower, probs, labels, bins)
        style.panel_title(upper, name, columns)
        _label(upper, lower, left=column == 0, bottom=i + columns >= len(methods))
    _share_scale(figure.axes[1::2])
    style.legend_above(figure)
    return style.arranged(figure)


def _draw_bins(upper: Axes, lower: Axes, probs: Probabilities, labels: Tensor, bins: int) -> None:
    """One method: accuracies and gaps above, shares of the examples below."""
    found = metrics.reliability(probs, labels, bins)
    full = as_array(found.count) > 0
    parts = (found.edges[:-1], found.share, found.confidence, found.accuracy)
    left, share, confidence, right = (as_array(x)[full] for x in parts)
    place: dict[str, Any] = {"width": 1 / bins, "align": "edge", "linewidth": 0.5}
    gap: dict[str, Any] = {"facecolor": "none", "edgecolor": style.VERMILION, "hatch": "//////"}
    upper.bar(left, right, color=style.SKY, edgecolor="white", label="accuracy", **place)
    upper.bar(left, confidence - right, bottom=right, label="gap to confidence", **place, **gap)
    upper.plot([0, 1], [0, 1], color="black", linestyle=(0, (4, 2)), linewidth=0.8, label="ideal")
    error = metrics.ece(probs, labels, bins)
    style.note(upper, 0.04, 0.97, f"ECE {100 * error:.1f} %\n{bins} bins", va="top")
    lower.bar(left, share, color=style.GREY, edgecolor="white", **place)


def _label(upper: Axes, lower: Axes, left: bool, bottom: bool) -> None:
    """Labels and ticks of both axes, on outer panels only."""
    for panel in (upper, lower):
        panel.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    style.in_percent(upper.yaxis, lower.xaxis, lower.yaxis)
    upper.tick_params(bottom=False, labelbottom=False, labelleft=left)
    lower.tick_params(labelleft=left, labelbottom=bottom)
    if left:
        upper.set_ylabel("accuracy (%)")
        lower.set_ylabel("share (%)")
    if bottom:
        lower.set_xlabel("confidence (%)")


def _share_scale(panels: list[Axes]) -> None:
    """Sets a common scale of shares, with ticks at 0 and at the next 10 %."""
    top = math.ceil(10 * max(panel.dataLim.y1 for panel in panels)) / 10
    for panel in panels:
        panel.set(ylim=(0, top), yticks=[0, top])


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
    figure = style.new_figure(figure_size(size, width, lambda wide: min(0.45 * wide + 1.0, 3.0)))
    panel = figure.subplots()
    top = 0.0
    for i, (name, probs) in enumerate(methods.items()):
        with naming("predictions", name):
            top = max(top, _draw_method(panel, i, name, probs, labels))
    panel.plot([], [], label="ideal order", **IDEAL)
    panel.set(xlim=(0, 1), ylim=(0, 1.05 * top or 1), xlabel="coverage (%)", ylabel="risk (%)")
    style.in_percent(panel.xaxis, panel.yaxis)
    style.legend_above(figure, title="in brackets: area under the curve (AURC)")
    return style.arranged(figure)


def _draw_method(panel: Axes, index: int, name: str, probs: Probabilities, labels: Tensor) -> float:
    """Draws the curve of a method and its optimal one; returns the maximum of the curve."""
    confidence, correct = metrics.confidence_and_correct(probs, labels)
    curve = metrics.risk_coverage(confidence, correct)
    ideal = metrics.risk_coverage(correct.double(), correct)
    label = f"{name or 'all predictions'} ({metrics.aurc(confidence, correct):.3f})"
    panel.plot(as_array(ideal.coverage), as_array(ideal.risk), zorder=1, **IDEAL)
    panel.plot(
        as_array(curve.coverage), as_array(curve.risk), label=label, **style.line_look(index)
    )
    return float(curve.risk[curve.coverage >= NOISY].max())
