"""The page's figures with their captions, and a section for each example."""

import torch
from matplotlib.figure import Figure

from babn import plots
from babn.demo import report
from babn.demo.choices import BINS
from babn.demo.examples import Example
from babn.demo.outcome import Outcome
from babn.evaluation.html_pages import Markup, element, join

WIDE, NARROW = 8.4, 4.2
"""Inches of a figure as wide as the page, and of a small one."""

CLASSES = 5
"""Intents that are shown for a sentence."""


def reliability_figure(outcome: Outcome) -> Markup:
    """Reliability diagrams side by side."""
    labels = torch.tensor(outcome.texts.clear.labels)
    predictions = {row.name: row.predictions.clear for row in outcome.rows}
    drawn = plots.reliability_diagram(predictions, labels, bins=BINS, size=WIDE)
    return _figure("", drawn, "Accuracy against confidence, and the expected calibration error.")


def entropy_figure(outcome: Outcome) -> Markup:
    """Entropy histograms side by side."""
    found = {row.name: row.predictions for row in outcome.rows}
    pairs = {name: (each.clear.entropy, each.outside.entropy) for name, each in found.items()}
    drawn = plots.entropy_histogram(pairs, size=WIDE)
    return _figure("", drawn, "Entropy of clear and out-of-scope texts")


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
        element("p", f"Prediction: {report.certainty(example)}."),
        element("p", f"It is {CHOSEN[example.kind]}.", class_="muted"),
        _class_figure(example),
        _attention_figure(example),
    )


def _class_figure(example: Example) -> Markup:
    names = [name.replace("_", " ") for name in example.names]
    right = [name.replace("_", " ") for name in example.intended]
    drawn = plots.class_probabilities(
        example.prediction, names, right=right, most=CLASSES, size=NARROW
    )
    return _figure(
        "The most probable intents",
        drawn,
        "Bars are means, dots single samples, lines and numbers the mean and its standard "
        "deviation. Intended intents are in bold.",
    )


def _attention_figure(example: Example) -> Markup:
    drawn = plots.attention_figure(example.attention, example.tokens, size=WIDE)
    return _figure(
        "Where it looks, and how unsure it is of that",
        drawn,
        "Attention in the last layer, averaged over heads. Each row is a token, each column what "
        "it looks at. Left: how much it looks there. Right: how unsure that is, as the standard "
        "deviation of the weight divided by its mean.",
    )


def _figure(title: str, drawn: Figure, caption: str) -> Markup:
    heading = element("h3", title) if title else Markup("")
    shown = Markup(plots.as_svg(drawn, title or caption))
    return element(
        "figure",
        heading,
        element("div", shown, class_="paper"),
        element("figcaption", caption),
    )
