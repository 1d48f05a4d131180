"""The page of the visual demo: one file that needs nothing but itself."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from babn.evaluation.markup import Markup, element, join
from babn.evaluation.page import check_target, document
from babn_paper.experiments.naming import method_name
from babn_paper.visual.visual_demo import NOISE, VisualOutcome
from babn_paper.visual.question_figure import draw

AUTHOR = "babn vqa-demo"
"""Stands in the page, to tell it from one that someone else made."""

TITLE = "How sure is attention to an image?"
PAGE, NUMBERS, PICTURE = "index.html", "results.json", "noise.png"

COLUMNS = {
    "accuracy": "accuracy",
    "mean confidence": "confidence",
    "ECE-10": "ECE",
    "PAvPU (p<0.05)": "PAvPU",
    "error AUROC (confidence)": "error AUROC",
}
"""Measures that are shown, and what they are called."""

SHOWN = (0.0, 5.0)

CURVES = ("accuracy", "mean confidence", "ECE-10")
"""Measures that are drawn over the variance of noise."""

LEGEND = (
    "Above: the image; how much the regions together attend to each region in the last layer, at "
    "the posterior mean; and how random that is (standard deviation by mean). Below: the most "
    "probable answers, and the same two maps for attention from each word (row) to each (column)."
)


def prepare(folder: Path, force: bool) -> None:
    """Makes the folder, unless it exists and holds what the demo did not write."""
    check_target(folder, PAGE, AUTHOR, force)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(document(TITLE, element("p", "Not finished yet."), AUTHOR))


def write(folder: Path, outcome: VisualOutcome, versions: dict[str, str]) -> None:
    """Writes the page, the noise curve and the numbers."""
    from babn.plots import save

    save(noise_figure(outcome), folder / PICTURE)
    (folder / PAGE).write_text(page(outcome, versions), encoding="utf-8")
    numbers = {
        "versions": versions,
        "experiment": outcome.experiment,
        "rows": [asdict(row) for row in outcome.rows],
    }
    text = json.dumps(numbers, indent=2)
    (folder / NUMBERS).write_text(text + "\n", encoding="utf-8")


def page(outcome: VisualOutcome, versions: dict[str, str]) -> str:
    """The whole page."""
    body = join(
        element("h1", TITLE),
        element("p", introduction(outcome)),
        element("h2", "Clean and noisy images"),
        element("div", _table(outcome), class_="scroll"),
        element("p", finding(outcome)),
        _svg(noise_figure(outcome), "Accuracy, confidence and calibration over noise"),
        element("h2", "Where the model with BABN looked"),
        element("p", LEGEND),
        *(_section(heading, look) for heading, look in outcome.looks),
        element("p", _footer(outcome, versions), class_="muted"),
    )
    return document(f"{TITLE} (babn)", body, AUTHOR)


def introduction(outcome: VisualOutcome) -> str:
    """What was done."""
    return (
        "Two small co-attention networks (MCAN) learned to answer questions about images of "
        "coloured shapes. One has softmax attention; in the other (BABN) attention weights are "
        "random, and each has a spread of its own. Then both were asked about images whose "
        "features had "
        "Gaussian noise added, which neither has seen in training. One run of each is too little "
        "to say which rule is better; it shows what can be asked."
    )


def finding(outcome: VisualOutcome) -> str:
    """What noise does to the model with BABN, in one sentence."""
    clean, noisy = (outcome.measures("belief", "sampled", noise) for noise in SHOWN)
    names = ("accuracy", "mean confidence", "mean mutual information")
    (right, sure, doubt), (right_noisy, sure_noisy, doubt_noisy) = (
        [measures[name] for name in names] for measures in (clean, noisy)
    )
    return (
        f"With noise of variance {SHOWN[1]:g}, BABN is right in {right_noisy:.0%} of the questions "
        f"in place of {right:.0%}. Its mean confidence goes from {sure:.0%} to "
        f"{sure_noisy:.0%}, and the mutual information of samples and answers, which is what "
        f"random attention contributes to its doubt, from {doubt:.4f} to {doubt_noisy:.4f} nats."
    )


def table_rows(outcome: VisualOutcome) -> list[list[str]]:
    """Name, noise and shown measures of each row, clean and with the paper's noise."""
    return [
        [
            method_name(row.rule, row.mode),
            f"{row.noise:g}",
            *(_percent(row.measures.get(name)) for name in COLUMNS),
        ]
        for row in outcome.rows
        if row.noise in SHOWN
    ]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def noise_figure(outcome: VisualOutcome) -> Any:
    """Accuracy, confidence and ECE of both rules, over the variance of noise."""
    from babn.plots.noise import noise_curves

    curves: dict[str, dict[str, list[float]]] = {}
    for row in outcome.rows:
        name = method_name(row.rule, row.mode)
        of_rule = curves.setdefault(name, {measure: [] for measure in CURVES})
        for measure, values in of_rule.items():
            values.append(row.measures[measure])
    return noise_curves(NOISE, curves)


def _table(outcome: VisualOutcome) -> Markup:
    names = ["attention", "noise", *(f"{name}, %" for name in COLUMNS.values())]
    head = element("tr", *(element("th", name, scope="col") for name in names))
    rows = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in table_rows(outcome)
    ]
    return element("table", element("thead", head), element("tbody", *rows))


def _section(heading: str, look: Any) -> Markup:
    answer = look.answers[0]
    said = (
        f"“{look.question}” – “{answer.answer}”, with probability {answer.probability:.2f} ± "
        f"{answer.std:.2f} over samples of attention; mutual information {look.information:.3f} "
        "nats."
    )
    figure = _svg(draw(look), f"{look.question} {answer.answer}")
    return join(element("h3", heading), element("p", said), figure)


def _svg(figure: Any, label: str) -> Markup:
    from babn.plots import as_svg

    return element("figure", Markup(as_svg(figure, label)))


def _footer(outcome: VisualOutcome, versions: dict[str, str]) -> str:
    parts = ", ".join(f"{name} {value}" for name, value in versions.items())
    steps, seed = outcome.experiment["steps"], outcome.experiment["seed"]
    return f"Written by {AUTHOR} with seed {seed} and {steps} steps. {parts}."
