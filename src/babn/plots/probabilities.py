"""Class probabilities with their spread over samples."""

from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from babn.errors import ConfigError
from babn.plots.plot_data import as_array, check_index
from babn.plots.sizes import SINGLE, Size, figure_size
from babn.plots.style import BLACK, SKY, VERMILION, arranged, drawing, in_percent, new_figure
from babn.prediction.result import Prediction

LONGEST = 24
"""Number of characters after which names are cut."""


@drawing
def class_probabilities(
    prediction: Prediction,
    names: Sequence[str],
    *,
    example: int = 0,
    most: int = 5,
    right: Collection[str] = (),
    size: Size = None,
) -> Figure:
    """The most probable classes of one example: mean, standard deviation, and every sample.

    Args:
        prediction: A prediction with samples of shape (sample, example, class).
        names: Names of the classes.
        example: Index of the example.
        most: Number of classes to show.
        right: Names of correct classes, which are bold.
        size: Width in inches, or width and height.
    """
    count, classes = prediction.probs.shape
    check_index("example", example, count, "the prediction has examples")
    if len(names) != classes:
        raise ConfigError(f"names has {len(names)} names for {classes} classes. Give one for each.")
    shown = prediction.probs[example].topk(min(most, classes)).indices.tolist()
    figure = new_figure(figure_size(size, SINGLE, lambda _: 0.5 + 0.27 * len(shown)))
    panel = figure.subplots()
    for place, label in enumerate(shown):
        _draw_class(panel, place, prediction, example, label)
    panel.set_yticks(range(len(shown)), [_short(names[label]) for label in shown])
    for tick, label in zip(panel.get_yticklabels(), shown, strict=True):
        tick.set_fontweight("bold" if names[label] in right else "normal")
    panel.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5), xlabel="probability (%)")
    panel.tick_params(left=False)
    in_percent(panel.xaxis)
    return arranged(figure)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _draw_class(panel: Axes, place: int, prediction: Prediction, example: int, label: int) -> None:
    """Draws a bar for the mean, a line for the deviation below it, and a dot for each sample."""
    mean, std = (float(x[example, label]) for x in (prediction.probs, prediction.std))
    samples = as_array(prediction.sample_probs[:, example, label])
    panel.barh(place, mean, height=0.62, color=SKY)
    panel.plot([mean - std, mean + std], [place + 0.4] * 2, color=VERMILION, linewidth=1.5)
    dots: dict[str, Any] = {"color": BLACK, "alpha": 0.5, "markersize": 3, "markeredgewidth": 0}
    panel.plot(samples, [place] * len(samples), "o", **dots)
    text = f"{100 * mean:.0f} ± {100 * std:.1f}"
    panel.annotate(
        text, (1, place), (4, 0), textcoords="offset points", va="center", annotation_clip=False
    )
