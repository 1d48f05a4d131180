"""Risk-coverage curves."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from babn import metrics
from babn.plots.answers import Answer, Answers, as_array, by_method, naming
from babn.plots.legends import collected, legend_above
from babn.plots.sizes import DOUBLE, SINGLE, Size, figure_size
from babn.plots.style import arranged, drawing, in_percent, line_look, new_figure

NOISY = 0.1
"""Below this coverage a curve rests on few examples and does not set the scale."""

MANY = 6
"""Methods whose names take so much room that the figure is as wide as two columns."""

IDEAL: dict[str, Any] = {"color": "0.7", "linewidth": 0.8}


@drawing
def risk_coverage(answers: Answers, labels: Tensor, *, size: Size = None) -> Figure:
    """Share of wrong answers among the surest examples, for every share of them that is answered.

    The legend gives the area under each curve, which is the mean risk over all coverages. Grey
    curves are what the same answers would give if every right one were surer than every wrong one.

    Args:
        answers: Probabilities of shape example by label or a prediction, or several by name.
        labels: The right class of each example.
        size: Width in inches, or width and height.
    """
    methods = by_method(answers)
    width = SINGLE if len(methods) < MANY else DOUBLE
    figure = new_figure(figure_size(size, width, lambda wide: min(0.45 * wide + 1.0, 3.0)))
    panel = figure.subplots()
    top = 0.0
    for i, (name, answer) in enumerate(methods.items()):
        with naming("answers", name):
            top = max(top, _draw_method(panel, i, name, answer, labels))
    panel.plot([], [], label="ideal order", **IDEAL)
    panel.set(xlim=(0, 1), ylim=(0, 1.05 * top or 1), xlabel="coverage (%)", ylabel="risk (%)")
    in_percent(panel.xaxis, panel.yaxis)
    legend_above(figure, *collected(figure), title="in brackets: area under the curve (AURC)")
    return arranged(figure)


def _draw_method(panel: Axes, index: int, name: str, answer: Answer, labels: Tensor) -> float:
    """The curve of a method over its ideal one; returns how high the curve goes."""
    confidence, correct = metrics.confidence_and_correct(answer, labels)
    curve = metrics.risk_coverage(confidence, correct)
    ideal = metrics.risk_coverage(correct.double(), correct)
    label = f"{name or 'all answers'} ({metrics.aurc(confidence, correct):.3f})"
    panel.plot(as_array(ideal.coverage), as_array(ideal.risk), zorder=1, **IDEAL)
    panel.plot(as_array(curve.coverage), as_array(curve.risk), label=label, **line_look(index))
    return float(curve.risk[curve.coverage >= NOISY].max())
