"""Sentences on the page."""

import xml.etree.ElementTree as ElementTree

import torch

import babn
from babn.demo.demo_page import example_section
from babn.demo.outcome import Example
from babn.evaluation.html_pages import Markup, element

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def parse(markup: Markup) -> ElementTree.Element:
    """The markup as a tree; fails if it is not well formed."""
    return ElementTree.fromstring(markup)


def test_sentences_cannot_become_markup() -> None:
    values = torch.tensor([[[[0.1, 0.9], [0.5, 0.5]]]])
    example = Example(
        kind="sure",
        text=HOSTILE,
        intended=(HOSTILE,),
        prediction=babn.Prediction(torch.randn(4, 1, 2)),
        names=(HOSTILE, "b"),
        tokens=[HOSTILE, "b"],
        attention=babn.AttentionMap(HOSTILE, values, values),
    )
    tree = parse(element("body", example_section(example)))
    quote = tree.find("blockquote")
    assert quote is not None
    assert quote.text == HOSTILE
    assert not [each for each in tree.iter() if each.tag.endswith("script")]
    figures = [each for each in tree.iter() if each.tag.endswith("svg")]
    assert len(figures) == 2 and all(each.attrib["role"] == "img" for each in figures)
