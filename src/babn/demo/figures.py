"""The page's figures with their headings and captions."""

import math

import torch

from babn.demo import charts, metrics
from babn.evaluation.markup import Markup, element, join
from babn.demo.outcome import Attempt, Outcome
from babn.demo.portrait import Portrait


def reliability_section(outcome: Outcome) -> Markup:
    """Reliability diagrams side by side."""
    labels = torch.tensor(outcome.texts.clear.labels)
    figures = []
    for attempt in outcome.attempts:
        probs = attempt.fullest.clear.probs
        drawn = charts.reliability_chart(attempt.name, metrics.reliability(probs, labels))
        figures.append(
            _figure(_asked(attempt), drawn, f"ECE {100 * metrics.ece(probs, labels):.1f} %")
        )
    return join(
        element("h2", "Is it as good as it says?"),
        element(
            "p",
            "Texts are grouped by the confidence that the model states. In a calibrated model "
            "the bars reach the dashed line: of the texts it is 80 % sure of, 80 % are right. Bars "
            "below the line mean overconfidence. The fainter a bar, the fewer texts are in it.",
        ),
        element("p", _key("inside", "accuracy"), _key("ideal", "perfect calibration")),
        element("div", *figures, class_="row"),
    )


def entropy_section(outcome: Outcome) -> Markup:
    """Entropy histograms side by side."""
    most = math.log(len(outcome.intents))
    figures = []
    for attempt in outcome.attempts:
        inside, outside = (a.entropy for a in (attempt.fullest.clear, attempt.fullest.outside))
        drawn = charts.entropy_chart(attempt.name, inside, outside, most)
        area = metrics.auroc(inside, outside)
        figures.append(_figure(_asked(attempt), drawn, f"AUROC {100 * area:.1f} %"))
    return join(
        element("h2", "Does it notice what it cannot know?"),
        element(
            "p",
            "Entropy measures how undecided an answer is: 0 is certainty, "
            f"{most:.2f} is knowing nothing. Out-of-scope texts should lie further to the right.",
        ),
        element("p", _key("inside", "clear texts"), _key("outside", "out-of-scope texts")),
        element("div", *figures, class_="row"),
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
        element("div", _class_figure(portrait), class_="row"),
        element("div", *_attention_figures(portrait), class_="row"),
    )


def _class_figure(portrait: Portrait) -> Markup:
    caption = join(
        _key("inside", "mean"),
        _key("sample", "one sample each"),
        _key("outside", "mean ± standard deviation, also in numbers"),
        "Intended intents are in bold.",
    )
    return _figure("The most probable intents", charts.class_chart(portrait.bars), caption)


def _attention_figures(portrait: Portrait) -> list[Markup]:
    weights = [value for row in portrait.weights for value in row]
    noise = [value for row in portrait.relative_std for value in row]
    where = f"layer {portrait.layer}, averaged over heads"
    return [
        _figure(
            "Where it looks",
            charts.heat_map(
                "Heat map of mean attention",
                portrait.tokens,
                portrait.weights,
                # Much of the attention goes to special tokens and would leave the rest invisible.
                lambda value: math.sqrt(value / max(weights)),
            ),
            f"Posterior mean of the attention weights in {where}. Each row is a token, each column "
            f"what it looks at; from 0 (faint) to {max(weights):.2f} (full) along the square root.",
        ),
        _figure(
            "How unsure it is of that",
            charts.heat_map(
                "Heat map of the relative noise of attention",
                portrait.tokens,
                portrait.relative_std,
                lambda value: (value - min(noise)) / (max(noise) - min(noise) or 1),
            ),
            "Standard deviation divided by mean in the same layer, the one whose attention to "
            f"words is noisiest; from {min(noise):.2f} (faint) to {max(noise):.2f} (full).",
        ),
    ]


def _figure(title: str, drawn: Markup, caption: str) -> Markup:
    return element("figure", element("h3", title), drawn, element("figcaption", caption))


def _asked(attempt: Attempt) -> str:
    if attempt.sampled is None:
        return attempt.name
    return f"{attempt.name}, {attempt.sampled.samples} samples"


def _key(kind: str, label: str) -> Markup:
    """An entry of a legend: a small patch of colour and what it stands for."""
    patch = element("span", class_=f"patch {kind}", aria_hidden="true")
    return element("span", patch, label, class_="key")
