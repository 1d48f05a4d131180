"""Sentences on the page."""

import xml.etree.ElementTree as ElementTree

from babn.demo.figures import portrait_section
from babn.demo.portrait import ClassBar, Portrait
from babn.evaluation.markup import Markup, element

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def parse(markup: Markup) -> ElementTree.Element:
    """The markup as a tree; fails if it is not well formed."""
    return ElementTree.fromstring(markup)


def test_sentences_cannot_become_markup() -> None:
    bars = [ClassBar(HOSTILE, False, 0.9, 0.1, [0.9])]
    tokens, values = [HOSTILE, "b"], [[0.1, 0.9], [0.5, 0.5]]
    portrait = Portrait("sure", HOSTILE, 0.5, 0.1, bars, tokens, 1, values, values)
    tree = parse(element("body", portrait_section(portrait)))
    quote = tree.find("blockquote")
    assert quote is not None
    assert quote.text == HOSTILE
    assert not [each for each in tree.iter() if each.tag.endswith("script")]
    figures = [each for each in tree.iter() if each.tag.endswith("svg")]
    assert len(figures) == 2 and all(each.attrib["role"] == "img" for each in figures)
