"""The page's figures with their headings and captions."""

import math

import torch
from matplotlib.figure import Figure

import babn
from babn import plots
from babn.demo.choices import BINS
from babn.demo.outcome import Attempt, Outcome
from babn.demo.portrait import CLASSES, Portrait
from babn.evaluation.markup import Markup, element, join

WIDE, NARROW = 8.4, 4.2
"""Inches of a figure as wide as the page, and of one that shares the line with another."""


def reliability_section(outcome: Outcome) -> Markup:
    """Reliability diagrams side by side."""
    labels = torch.tensor(outcome.texts.clear.labels)
    answers = {_asked(attempt): attempt.fullest.clear for attempt in outcome.attempts}
    drawn = plots.reliability_diagram(answers, labels, bins=BINS, size=WIDE)
    return join(
        element("h2", "Is it as good as it says?"),
        element(
            "p",
            "Texts are grouped by the confidence that the model states. In a calibrated model "
            "the bars reach the dashed line: of the texts it is 80 % sure of, 80 % are right. Bars "
            "below the line mean overconfidence. The small bars say how many texts are in a group.",
        ),
        _figure("", drawn, "Accuracy against confidence, and the expected calibration error."),
    )


def entropy_section(outcome: Outcome) -> Markup:
    """Entropy histograms side by side."""
    pairs = {
        _asked(attempt): (attempt.fullest.clear.entropy, attempt.fullest.outside.entropy)
        for attempt in outcome.attempts
    }
    return join(
        element("h2", "Does it notice what it cannot know?"),
        element(
            "p",
            "Entropy measures how undecided an answer is: 0 is certainty, "
            f"{math.log(len(outcome.intents)):.2f} is knowing nothing. Out-of-scope texts, which "
            "are out of the models' domain, should lie further to the right.",
        ),
        _figure(
            "", plots.entropy_histogram(pairs, size=WIDE), "Entropy of clear and out-of-scope texts"
        ),
    )


TITLES = {"sure": "A sentence BABN is sure of", "unsure": "A sentence BABN is unsure of"}
CHOSEN = {
    "sure": "the clear text, answered correctly, on which the samples agree most",
    "unsure": "the ambiguous text on which the samples disagree most",
}


def portrait_section(portrait: Portrait) -> Markup:
    """One sentence: its intents, and its attention."""
    return join(
        element("h2", TITLES[portrait.kind]),
        element("blockquote", portrait.text),
        element(
            "p",
            f"This is {CHOSEN[portrait.kind]}. Its entropy is {portrait.entropy:.2f} nats, its "
            f"mutual information {portrait.mutual_information:.3f}.",
        ),
        _class_figure(portrait),
        _attention_figure(portrait),
    )


def _class_figure(portrait: Portrait) -> Markup:
    samples = torch.tensor([bar.samples for bar in portrait.bars]).T.unsqueeze(1)
    names = [bar.intent.replace("_", " ") for bar in portrait.bars]
    right = [bar.intent.replace("_", " ") for bar in portrait.bars if bar.intended]
    drawn = plots.class_probabilities(
        babn.Prediction(samples, "identity"), names, right=right, most=CLASSES, size=NARROW
    )
    return _figure(
        "The most probable intents",
        drawn,
        "Bars are means, dots single samples, lines and numbers the mean and its standard "
        "deviation. Intended intents are in bold.",
    )


def _attention_figure(portrait: Portrait) -> Markup:
    weights, noise = (
        torch.tensor(x)[None, None] for x in (portrait.weights, portrait.relative_std)
    )
    drawn = plots.attention_figure(
        babn.AttentionMap(f"layer {portrait.layer}", weights, noise), portrait.tokens, size=WIDE
    )
    return _figure(
        "Where it looks, and how unsure it is of that",
        drawn,
        f"Posterior mean of the attention weights in layer {portrait.layer}, averaged over heads, "
        "and their standard deviation divided by the mean. Each row is a token, each column what "
        "it looks at. The layer is the one whose attention to words is noisiest.",
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


def _asked(attempt: Attempt) -> str:
    if attempt.sampled is None:
        return attempt.name
    return f"{attempt.name}, {attempt.sampled.samples} samples"
