"""Figures of visual question answering: one example, and metrics against image noise."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from torch import Tensor

from babn.plots import DOUBLE
from babn.plots.attention import Shading, choose, readable, shadings
from babn.plots.figures import BLUE, PALE, arranged, drawing, in_percent, line_look, new_figure
from babn.prediction.attention_maps import AttentionMap
from babn_paper.plots.images import as_picture, corners, draw_regions


@drawing
def question_figure(
    question: str,
    answers: Sequence[tuple[str, float, float]],
    words: Sequence[str],
    word_map: AttentionMap,
    region_map: AttentionMap,
    image: Tensor | np.ndarray | None,
    boxes: Tensor | np.ndarray | tuple[int, int] | None,
) -> Figure:
    """One visual question with its most probable answers and attention maps.

    The upper panels show the image, and on it posterior mean and std/mean of attention to regions;
    the lower ones the answers, and the same for attention from words (rows) to words (columns).

    Args:
        question: The title.
        answers: Name, probability and its standard deviation of each answer to show.
        words: The question's words.
        word_map: Attention of words to words, with one head.
        region_map: Attention to regions, with one head and one query.
        image: Height by width with three colours; `None` if unknown.
        boxes: Corners of the regions, or rows and columns of a grid; `None` if unknown.
    """
    figure = new_figure((DOUBLE, 0.62 * DOUBLE))
    figure.suptitle(question, fontsize=9)
    panels = figure.subplots(2, 3, width_ratios=[1, 1.1, 1.1])
    _draw_image(figure, list(panels[0]), region_map, image, boxes)
    _draw_answers(panels[1, 0], answers)
    mean, spread = choose(word_map, 0, [0])
    count = len(words)
    shown = mean[0, :count, :count], spread[0, :count, :count]
    for panel, matrix, shading in zip(panels[1, 1:], shown, shadings(*shown), strict=True):
        panel.imshow(matrix, cmap=shading.colours, norm=shading.norm, aspect="auto")
        names = readable(words)
        panel.set_xticks(range(count), names, rotation=60, ha="right", rotation_mode="anchor")
        panel.set_yticks(range(count), names)
        panel.tick_params(length=0)
        _scale(figure, panel, shading, "words")
    return arranged(figure)


def _draw_image(
    figure: Figure, panels: Sequence[Axes], map: AttentionMap, image: Any, boxes: Any
) -> None:
    mean, spread = choose(map, 0, [0])
    if boxes is None:
        boxes = (1, mean.shape[-1])  # regions without places, side by side
    picture = _blank(boxes) if image is None else as_picture(image)
    panels[0].imshow(picture)
    panels[0].set_title("image" if image is not None else "(no image)")
    places = corners(boxes, picture.shape[:2])
    weights = mean[0, 0, : len(places)], spread[0, 0, : len(places)]
    found = draw_regions(panels[1:], picture, places, weights, not isinstance(boxes, tuple))
    for panel, shading in zip(panels[1:], found, strict=True):
        _scale(figure, panel, shading, "regions")
    for panel in panels:
        panel.set_axis_off()


def _blank(boxes: Any) -> Float[np.ndarray, "height width 3"]:
    if isinstance(boxes, tuple):
        return np.ones((40, 40 * boxes[1], 3))
    right, bottom = np.ceil(np.asarray(boxes)[:, 2:].max(0)).astype(int)
    return np.ones((max(bottom, 1), max(right, 1), 3))


def _draw_answers(panel: Axes, answers: Sequence[tuple[str, float, float]]) -> None:
    places = np.arange(len(answers))
    shares = np.array([share for _, share, _ in answers])
    spreads = np.array([spread for _, _, spread in answers])
    panel.barh(places, shares, 0.6, color=BLUE)
    # A probability stays between 0 and 1.
    ends = np.stack([np.minimum(spreads, shares), np.minimum(spreads, 1 - shares)])
    panel.errorbar(shares, places, xerr=ends, fmt="none", ecolor="black", elinewidth=0.8)
    panel.set_yticks(places, [readable([each[0]])[0] for each in answers])
    panel.set_xlim(0, 1)
    panel.invert_yaxis()
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("probability, ± its std over samples")
    panel.set_facecolor(PALE)


def _scale(figure: Figure, panel: Axes, shading: Shading, what: str) -> None:
    panel.set_title(f"{shading.name}, {what}")
    bar = figure.colorbar(ScalarMappable(shading.norm, shading.colours), ax=panel, aspect=25)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6, length=2)


@drawing
def noise_curves(
    variances: Sequence[float], curves: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """One panel for each measure, with one curve for each method.

    Args:
        variances: Variances of the noise.
        curves: For each method and measure, values from 0 to 1 at each variance.
    """
    measures = list(next(iter(curves.values())))
    figure = new_figure((DOUBLE, 0.34 * DOUBLE))
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for panel, measure in zip(panels, measures, strict=True):
        for index, (name, of_method) in enumerate(curves.items()):
            panel.plot(
                variances, of_method[measure], label=name, marker="o", ms=3, **line_look(index)
            )
        panel.set_xlabel("variance of noise")
        panel.set_ylabel(f"{measure} (%)")
        panel.set_xticks(list(variances))
        panel.margins(0.03, 0.08)
        panel.set_ylim(bottom=0)
        in_percent(panel.yaxis)
    panels[0].legend()
    return arranged(figure)
