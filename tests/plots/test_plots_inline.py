"""Figures inside pages."""

import xml.etree.ElementTree as ElementTree

from babn import plots
from plot_checks import answers

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def test_an_inline_figure_is_one_element_with_a_label() -> None:
    probs, labels = answers()
    text = plots.as_svg(plots.risk_coverage({HOSTILE: probs}, labels), HOSTILE)
    tree = ElementTree.fromstring(text)
    assert tree.tag.endswith("svg") and tree.attrib["role"] == "img"
    assert tree.attrib["aria-label"] == HOSTILE
    assert "metadata" not in text and "<?xml" not in text
    assert not [each for each in tree.iter() if each.tag.endswith("script")]
    assert any((each.text or "").strip().startswith(HOSTILE) for each in tree.iter())


def test_inline_figures_are_the_same_each_time() -> None:
    first, second = (plots.as_svg(plots.risk_coverage(*answers())) for _ in range(2))
    assert first == second
