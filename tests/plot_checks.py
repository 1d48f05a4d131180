"""What the tests of plots share: data, and a reader's look at a figure."""

import itertools

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor

import babn

METHODS = ("softmax", "MC dropout", "BAM", "deep ensemble", "BABN")
WIDTHS = (3.3, pytest.param(6.8, marks=pytest.mark.thorough))


def answers(seed: int = 0, examples: int = 200, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Probabilities that are right more often than not, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(examples) % classes
    logits = torch.randn(examples, classes, generator=generator)
    logits += 1.5 * torch.nn.functional.one_hot(labels, classes)
    return (2 * logits).softmax(-1), labels


def several(count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Answers of that many methods, and labels."""
    return {name: answers(i)[0] for i, name in enumerate(METHODS[:count])}, answers()[1]


def attention_map(
    queries: int = 6, keys: int = 6, heads: int = 3, causal: bool = False
) -> babn.AttentionMap:
    """A map of two examples with random weights."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, heads, queries, keys, generator=generator)
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf)
    mean = scores.softmax(-1)
    spread = 0.1 + torch.rand(2, heads, queries, keys, generator=generator)
    return babn.AttentionMap("layer/0", mean, torch.where(mean > 0, spread, 0.0))


def tick_texts(axis: Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def texts(figure: Figure) -> list[str]:
    """All text of a figure."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def clipped(figure: Figure) -> bool:
    """Whether anything sticks out of the figure by more than a pixel."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    low, high = min(box.x0, box.y0), max(box.x1 - width, box.y1 - height)
    return low < -0.01 or high > 0.01


def touching(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of labels that overlap along the same axis."""
    figure.draw_without_rendering()
    found = []
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            found += _touching(panel, axis)
    return found


def _touching(panel: Axes, axis: Axis) -> list[tuple[str, str]]:
    if not (panel.get_visible() and axis.get_visible()):
        return []
    shown = [x for x in axis.get_ticklabels() if x.get_visible() and x.get_text()]
    boxes = [(x.get_text(), x.get_window_extent()) for x in shown]
    pairs = itertools.pairwise(boxes)
    return [(a, b) for (a, one), (b, other) in pairs if one.padded(-0.3).overlaps(other)]
