"""Escaping of texts and attributes in HTML."""

import xml.etree.ElementTree as ElementTree

from babn.evaluation.html_pages import Markup, element, join

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def parse(markup: Markup) -> ElementTree.Element:
    """The markup as a tree; fails if it is not well formed."""
    return ElementTree.fromstring(markup)


def test_text_is_escaped() -> None:
    tree = parse(element("p", HOSTILE))
    assert tree.text == HOSTILE
    assert len(tree) == 0


def test_attributes_are_escaped() -> None:
    tree = parse(element("p", title=HOSTILE, class_="muted"))
    assert tree.attrib == {"title": HOSTILE, "class": "muted"}


def test_markup_is_kept() -> None:
    assert element("p", element("b", "bold"), " & plain") == "<p><b>bold</b> &amp; plain</p>"
    assert join("<", Markup("<br>")) == "&lt;<br>"
