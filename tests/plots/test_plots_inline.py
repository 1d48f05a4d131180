"""Figures inside pages."""

import xml.etree.ElementTree as ElementTree

import torch
from matplotlib.figure import Figure

from babn import plots

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def figure() -> Figure:
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(2, 40, generator=generator)
    return plots.entropy_histogram({HOSTILE: (inside, outside)})


def test_an_inline_figure_is_one_element_with_a_label() -> None:
    text = plots.as_svg(figure(), HOSTILE)
    tree = ElementTree.fromstring(text)
    assert tree.tag.endswith("svg") and tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == HOSTILE
    assert "metadata" not in text and "<?xml" not in text
    assert not [each for each in tree.iter() if each.tag.endswith("script")]
    assert HOSTILE[:23] in "".join((each.text or "").strip() for each in tree.iter())


def test_inline_figures_are_the_same_each_time() -> None:
    assert plots.as_svg(figure()) == plots.as_svg(figure())
