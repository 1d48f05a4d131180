"""Figures inside pages, and probabilities of classes."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from babn import plots
from babn.errors import ConfigError
from babn.prediction.result import Prediction

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def prediction() -> Prediction:
    generator = torch.Generator().manual_seed(0)
    return Prediction(torch.randn(6, 3, 4, generator=generator))


def test_an_inline_figure_is_one_element_with_a_label() -> None:
    figure = plots.class_probabilities(prediction(), [HOSTILE, "b", "c", "d"])
    text = plots.as_svg(figure, HOSTILE)
    tree = ElementTree.fromstring(text)
    assert tree.tag.endswith("svg") and tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == HOSTILE
    assert "metadata" not in text and "<?xml" not in text
    assert not [each for each in tree.iter() if each.tag.endswith("script")]
    assert HOSTILE[:23] + "…" in [(each.text or "").strip() for each in tree.iter()]


def test_inline_figures_are_the_same_each_time() -> None:
    first, second = (
        plots.as_svg(plots.class_probabilities(prediction(), list("abcd"))) for _ in range(2)
    )
    assert first == second


def test_bars_are_means_dots_samples_and_lines_deviations() -> None:
    drawn = prediction()
    figure = plots.class_probabilities(drawn, list("abcd"), example=1, most=2, right=["b", "c"])
    (panel,) = figure.axes
    order = drawn.probs[1].argsort(descending=True)[:2]
    widths = [bar.get_width() for bar in panel.patches]
    assert widths == pytest.approx(drawn.probs[1][order].tolist())
    spreads, dots = panel.lines[::2], panel.lines[1::2]
    for label, spread, dot in zip(order, spreads, dots, strict=True):
        mean, std = drawn.probs[1, label], drawn.std[1, label]
        assert spread.get_xdata() == pytest.approx([float(mean - std), float(mean + std)])
        assert dot.get_xdata() == pytest.approx(drawn.sample_probs[:, 1, label].numpy())
    names = ["abcd"[label] for label in order]
    assert [tick.get_text() for tick in panel.get_yticklabels()] == names
    bold = [tick.get_fontweight() == "bold" for tick in panel.get_yticklabels()]
    assert bold == [name in "bc" for name in names]


def test_unknown_examples_and_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="example=3"):
        plots.class_probabilities(prediction(), list("abcd"), example=3)
    with pytest.raises(ConfigError, match="names has 3 names for 4 classes"):
        plots.class_probabilities(prediction(), list("abc"))
