"""The page that the demo writes from `page.html`: one file without external references."""

import math
from collections.abc import Iterable
from importlib.resources import files
from string import Template

import torch
from matplotlib.figure import Figure

from babn import plots
from babn.demo import result_texts
from babn.demo.choices import BINS
from babn.demo.outcome import Example, Outcome
from babn.evaluation import html_pages
from babn.evaluation.html_pages import Markup, document, element, join
from babn.evaluation.tables import Table

AUTHOR = "babn demo"
"""Identifies pages that the demo wrote."""

TITLE = "How sure is attention?"


WIDE, NARROW = 8.4, 4.2
"""Inches of a figure as wide as the page, and of a small one."""

CLASSES = 5
"""Intents that are shown for a sentence."""


def page(outcome: Outcome, versions: dict[str, str]) -> str:
    """The whole page."""
    values = {
        "title": TITLE,
        "model": outcome.source.name,
        "intents": str(len(outcome.intents)),
        "shortest": "\n".join(result_texts.SHORTEST),
        "table": _table(outcome),
        "legend": _definitions((column.name, column.legend) for column in result_texts.COLUMNS),
        "heading": result_texts.heading(outcome),
        "verdicts": join(*(element("li", verdict) for verdict in result_texts.verdicts(outcome))),
        "caveat": result_texts.caveat(outcome),
        "reliability": reliability_figure(outcome),
        "ignorance": f"{math.log(len(outcome.intents)):.2f}",
        "entropy": entropy_figure(outcome),
        "examples": join(*(example_section(example) for example in outcome.examples)),
        "next": _definitions(
            (element("code", command), text) for command, text in result_texts.NEXT
        ),
        "seed": str(outcome.settings.seed),
        "epochs": str(outcome.recipe.epochs),
        "batch_size": str(outcome.recipe.batch_size),
        "rate": f"{outcome.recipe.rate:g}",
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
    }
    template = files("babn.demo").joinpath("page.html").read_text(encoding="utf-8")
    body = Template(template).substitute({name: join(value) for name, value in values.items()})
    return document(f"{TITLE} (babn demo)", Markup(body), AUTHOR)


def _table(outcome: Outcome) -> Markup:
    columns = result_texts.COLUMNS
    rows = [[row.name, *(column.show(row) for column in columns)] for row in outcome.rows]
    names = ["attention", *(column.name for column in columns)]
    return Markup(Table(names, rows, result_texts.tested_on(outcome)).html())


def _definitions(entries: Iterable[tuple[str, str]]) -> Markup:
    """The entries of a definition list."""
    return join(*(join(element("dt", term), element("dd", text)) for term, text in entries))


def reliability_figure(outcome: Outcome) -> Markup:
    """Reliability diagrams side by side."""
    labels = torch.tensor(outcome.texts.clear.labels)
    predictions = {row.name: row.predictions.clear for row in outcome.rows}
    figure = plots.reliability_diagram(predictions, labels, bins=BINS, size=WIDE)
    return _drawn(figure, "Accuracy against confidence, and the expected calibration error.")


def entropy_figure(outcome: Outcome) -> Markup:
    """Entropy histograms side by side."""
    found = {row.name: row.predictions for row in outcome.rows}
    pairs = {name: (each.clear.entropy, each.outside.entropy) for name, each in found.items()}
    figure = plots.entropy_histogram(pairs, size=WIDE)
    return _drawn(figure, "Entropy of clear and out-of-scope texts")


TITLES = {"sure": "A sentence BABN is sure of", "unsure": "A sentence BABN is unsure of"}
CHOSEN = {
    "sure": "the correctly predicted clear text of that length on which samples agree most",
    "unsure": "the ambiguous text on which samples disagree most",
}


def example_section(example: Example) -> Markup:
    """One sentence: its intents, and its attention."""
    return join(
        element("h2", TITLES[example.kind]),
        element("blockquote", example.text),
        element("p", f"Prediction: {result_texts.certainty(example)}."),
        element("p", f"It is {CHOSEN[example.kind]}.", class_="muted"),
        _class_figure(example),
        _attention_figure(example),
    )


def _class_figure(example: Example) -> Markup:
    names = [name.replace("_", " ") for name in example.names]
    right = [name.replace("_", " ") for name in example.intended]
    figure = plots.class_probabilities(
        example.prediction, names, right=right, most=CLASSES, size=NARROW
    )
    return _drawn(
        figure,
        "Bars are means, dots single samples, lines and numbers the mean and its standard "
        "deviation. Intended intents are in bold.",
        "The most probable intents",
    )


def _attention_figure(example: Example) -> Markup:
    figure = plots.attention_figure(example.attention, example.tokens, size=WIDE)
    return _drawn(
        figure,
        "Attention in the last layer, averaged over heads. Each row is a token, each column what "
        "it looks at. Left: how much it looks there. Right: how unsure that is, as the standard "
        "deviation of the weight divided by its mean.",
        "Where it looks, and how unsure it is of that",
    )


def _drawn(figure: Figure, caption: str, title: str = "") -> Markup:
    return html_pages.figure(plots.as_svg(figure, title or caption), caption, title=title)
