"""Figures of predictions: calibration, selective prediction and entropies."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from babn import metrics
from babn.errors import ConfigError, MetricInputError
from babn.plots import DOUBLE, SINGLE
from babn.plots import figures as style
from babn.prediction.result import Prediction

Probabilities = Prediction | Tensor
Predictions = Mapping[str, Probabilities] | Probabilities
"""Probabilities or a prediction, of one method or by method name."""

Entropies = Prediction | Tensor
Pairs = dict[str, tuple[Float[np.ndarray, "inside"], Float[np.ndarray, "outside"]]]
"""Entropies of in-domain and of out-of-domain examples by method."""

NOISY = 0.1
"""Below this coverage a curve depends on few examples and is ignored for the scale."""

MANY = 6
"""Number of methods from which on curves are two columns wide."""

BARS = 20
"""Number of bars of a histogram."""

IDEAL: dict[str, Any] = {"color": "0.7", "linewidth": 0.8}


@style.drawing
def reliability_diagram(
    predictions: Predictions, labels: Tensor, bins: int = 10, *, size: style.Size = None
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
    methods = _by_method(predictions)
    figure, rows, columns = style.panel_grid(
        len(methods), size, lambda x: max(0.95 * x + 0.35, 1.9)
    )
    cells = figure.add_gridspec(2 * rows, columns, height_ratios=[4, 1] * rows)
    for i, (name, probs) in enumerate(methods.items()):
        row, column = divmod(i, columns)
        upper, lower = (figure.add_subplot(cells[2 * row + j, column]) for j in (0, 1))
        with _naming("predictions", name):
            _draw_bins(upper, lower, probs, labels, bins)
        style.panel_title(upper, name, columns)
        for panel in (upper, lower):
            panel.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        style.in_percent(upper.yaxis, lower.xaxis, lower.yaxis)
        upper.tick_params(bottom=False)
        _label_outer(upper, column == 0, False, "", "accuracy (%)")
        bottom = i + columns >= len(methods)
        _label_outer(lower, column == 0, bottom, "confidence (%)", "share (%)")
    # A common scale of shares, up to the next 10 %.
    top = math.ceil(10 * max(panel.dataLim.y1 for panel in figure.axes[1::2])) / 10
    for panel in figure.axes[1::2]:
        panel.set(ylim=(0, top), yticks=[0, top])
    style.legend_above(figure)
    return style.arranged(figure)


def _by_method(predictions: Predictions) -> dict[str, Probabilities]:
    """Predictions by method name; a single method has the empty name."""
    if not isinstance(predictions, Mapping):
        return {"": predictions}
    style.check_some(predictions, "predictions", "a mapping from names to probabilities")
    return dict(predictions)


@contextmanager
def _naming(argument: str, name: str) -> Iterator[None]:
    """Adds the name of the method to errors of metrics."""
    try:
        yield
    except MetricInputError as error:
        place = f"{argument}[{name!r}]" if name else argument
        raise MetricInputError(f"{place}: {error}") from error


def _draw_bins(upper: Axes, lower: Axes, probs: Probabilities, labels: Tensor, bins: int) -> None:
    """One method: accuracies and gaps above, shares of the examples below."""
    found = metrics.reliability(probs, labels, bins)
    full = style.as_array(found.count) > 0
    parts = (found.edges[:-1], found.share, found.confidence, found.accuracy)
    left, share, confidence, right = (style.as_array(x)[full] for x in parts)
    place: dict[str, Any] = {"width": 1 / bins, "align": "edge", "linewidth": 0.5}
    gap: dict[str, Any] = {"facecolor": "none", "edgecolor": style.VERMILION, "hatch": "//////"}
    upper.bar(left, right, color=style.SKY, edgecolor="white", label="accuracy", **place)
    upper.bar(left, confidence - right, bottom=right, label="gap to confidence", **place, **gap)
    upper.plot([0, 1], [0, 1], color="black", linestyle=(0, (4, 2)), linewidth=0.8, label="ideal")
    error = metrics.ece(probs, labels, bins)
    style.note(upper, 0.04, 0.97, f"ECE {100 * error:.1f} %\n{bins} bins", va="top")
    lower.bar(left, share, color=style.GREY, edgecolor="white", **place)


def _label_outer(panel: Axes, left: bool, bottom: bool, xlabel: str, ylabel: str) -> None:
    """Labels the axes of a panel in the left column and in the bottom row only."""
    panel.tick_params(labelleft=left, labelbottom=bottom)
    panel.set(xlabel=xlabel if bottom else "", ylabel=ylabel if left else "")


@style.drawing
def risk_coverage(predictions: Predictions, labels: Tensor, *, size: style.Size = None) -> Figure:
    """Error rate among the most confident examples, over the share that is not rejected.

    The legend shows the area under each curve, which is the mean risk over all coverages. Grey
    curves show the optimal order, in which every correct prediction is more confident than every
    wrong one.

    Args:
        predictions: Probabilities of shape (example, label) or a prediction, or several by name.
        labels: The correct class of each example.
        size: Width in inches, or width and height.
    """
    methods = _by_method(predictions)
    width = SINGLE if len(methods) < MANY else DOUBLE
    figure = style.new_figure(
        style.figure_size(size, width, lambda wide: min(0.45 * wide + 1.0, 3.0))
    )
    panel = figure.subplots()
    top = 0.0
    for i, (name, probs) in enumerate(methods.items()):
        with _naming("predictions", name):
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
    panel.plot(style.as_array(ideal.coverage), style.as_array(ideal.risk), zorder=1, **IDEAL)
    panel.plot(
        style.as_array(curve.coverage),
        style.as_array(curve.risk),
        label=label,
        **style.line_look(index),
    )
    return float(curve.risk[curve.coverage >= NOISY].max())


@style.drawing
def entropy_histogram(
    inside: Entropies | Mapping[str, tuple[Entropies, Entropies]],
    outside: Entropies | None = None,
    *,
    size: style.Size = None,
) -> Figure:
    """Entropies of in-domain and out-of-domain examples, one panel for each method.

    Each panel shows the AUROC: the probability that an out-of-domain example has the higher
    entropy.

    Args:
        inside: Entropies of in-domain examples in nats, or a prediction, or a mapping from method
            names to pairs of inside and outside.
        outside: Entropies of out-of-domain examples, unless `inside` is a mapping.
        size: Width in inches, or width and height.
    """
    pairs = _pairs(inside, outside)
    figure, rows, columns = style.panel_grid(len(pairs), size, lambda x: max(1.3, 0.55 * x + 0.3))
    values = [x for pair in pairs.values() for x in pair]
    edges = np.histogram_bin_edges(np.concatenate([[0.0], *values]), BARS)
    for i, (name, pair) in enumerate(pairs.items()):
        panel = figure.add_subplot(rows, columns, i + 1)
        with _naming("inside", name):
            _draw_pair(panel, pair, edges)
        style.panel_title(panel, name, columns)
        bottom = i + columns >= len(pairs)
        _label_outer(panel, i % columns == 0, bottom, "entropy (nats)", "share (%)")
        style.in_percent(panel.yaxis)
    top = 1.25 * max(panel.dataLim.y1 for panel in figure.axes)
    for panel in figure.axes:
        panel.set(xlim=edges[[0, -1]], ylim=(0, top))
    style.legend_above(figure)
    return style.arranged(figure)


def _pairs(inside: Any, outside: Entropies | None) -> Pairs:
    """Entropies by method name; a single method has the empty name."""
    if isinstance(inside, Mapping) != (outside is None):
        raise ConfigError(
            f"inside is a {type(inside).__name__} and outside a {type(outside).__name__}. Give two "
            "tensors, or as inside alone a mapping from names to pairs of tensors."
        )
    pairs: Any = inside if isinstance(inside, Mapping) else {"": (inside, outside)}
    style.check_some(pairs, "inside", "a mapping from names to pairs of tensors")
    return {name: (_entropies(one), _entropies(other)) for name, (one, other) in pairs.items()}


def _entropies(source: Entropies) -> Float[np.ndarray, "example"]:
    return style.as_array(source.entropy if isinstance(source, Prediction) else source).flatten()


def _draw_pair(panel: Axes, pair: Any, edges: Float[np.ndarray, "edge"]) -> None:
    """Draws one method: bars for inside, an outline for outside, so that both stay visible."""
    score = metrics.auroc(*(torch.as_tensor(x) for x in pair))
    shares = [np.histogram(x, edges)[0] / len(x) for x in pair]
    panel.stairs(shares[0], edges, fill=True, color=style.SKY, label="in domain")
    panel.stairs(shares[1], edges, color=style.VERMILION, linewidth=1.2, label="out of domain")
    style.note(panel, 0.97, 0.97, f"AUROC {score:.3f}", va="top", ha="right")
