"""What the page is made of: escaped, and drawn to scale."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from babn.demo import charts
from babn.demo.figures import portrait_section
from babn.evaluation.markup import Markup, element, join
from babn.demo.portrait import ClassBar, Portrait

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> </svg>"


def parse(markup: Markup) -> ElementTree.Element:
    """The markup as a tree; fails if it is not well formed."""
    return ElementTree.fromstring(markup)


def test_text_is_escaped() -> None:
    tree = parse(element("p", HOSTILE))
    assert tree.text == HOSTILE
    assert len(tree) == 0


def test_attributes_are_escaped() -> None:
    tree = parse(element("svg", aria_label=HOSTILE, class_="chart", x=1 / 3))
    assert tree.attrib == {"aria-label": HOSTILE, "class": "chart", "x": "0.33333"}


def test_markup_is_kept() -> None:
    assert element("p", element("b", "bold"), " & plain") == "<p><b>bold</b> &amp; plain</p>"
    assert join("<", Markup("<br>")) == "&lt;<br>"


@pytest.mark.parametrize(
    "drawn",
    [
        charts.reliability_chart(HOSTILE, torch.rand(10, 3).double()),
        charts.entropy_chart(HOSTILE, torch.rand(9), torch.rand(4), 2.77),
        charts.class_chart([ClassBar(HOSTILE, True, 0.9, 0.2, [0.5, 1.0])]),
        charts.heat_map(HOSTILE, [HOSTILE, "b"], [[0.1, 0.9], [0.5, 0.5]], float),
    ],
    ids=["reliability", "entropy", "classes", "heat map"],
)
def test_charts_are_well_formed_and_described(drawn: Markup) -> None:
    tree = parse(drawn)
    assert tree.attrib["role"] == "img"
    assert HOSTILE in tree.attrib["aria-label"]
    assert not [each for each in tree.iter() if each.tag == "script"]


def test_sentences_cannot_become_markup() -> None:
    bars = [ClassBar(HOSTILE, False, 0.9, 0.1, [0.9])]
    tokens, values = [HOSTILE, "b"], [[0.1, 0.9], [0.5, 0.5]]
    portrait = Portrait("sure", HOSTILE, 0.5, 0.1, bars, tokens, 1, values, values)
    tree = parse(element("body", portrait_section(portrait)))
    quote = tree.find("blockquote")
    assert quote is not None
    assert quote.text == HOSTILE
    assert not [each for each in tree.iter() if each.tag == "script"]


def test_bars_stay_inside_their_track() -> None:
    bar = ClassBar("sure", True, 0.95, 0.4, [1.0])
    spread = parse(charts.class_chart([bar])).find("line[@class='spread']")
    assert spread is not None
    assert float(spread.attrib["x2"]) <= charts.BAR_LEFT + charts.BAR_WIDTH


def test_shades_run_from_faint_to_full() -> None:
    tree = parse(charts.heat_map("map", ["a", "b"], [[0.0, 0.5], [1.0, 2.0]], float))
    shades = [float(cell.attrib["fill-opacity"]) for cell in tree.iter("rect")]
    assert shades == [0.05, 0.525, 1.0, 1.0]
