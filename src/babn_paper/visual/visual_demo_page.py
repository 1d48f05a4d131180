"""The self-contained HTML page of the visual demo."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from babn.evaluation.html_pages import Markup, check_target, document, element, join
from babn.evaluation.tables import Table
from babn_paper.experiments.naming import method_name
from babn_paper.visual.question import VisualAnswer
from babn_paper.visual.question_figure import draw
from babn_paper.visual.visual_demo import NOISE, VisualOutcome

AUTHOR = "babn vqa-demo"
"""Identifies pages that this command wrote and may overwrite."""

TITLE = "How sure is attention to an image?"
PAGE, NUMBERS, PICTURE = "index.html", "results.json", "noise.png"

COLUMNS = {
    "accuracy": "accuracy",
    "mean confidence": "confidence",
    "ECE-10": "ECE",
    "PAvPU (p<0.05)": "PAvPU",
    "error AUROC (confidence)": "error AUROC",
}
"""Measures of the table, and their headings."""

SHOWN = (0.0, 5.0)

CURVES = ("accuracy", "mean confidence", "ECE-10")
"""Measures that are plotted over the noise variance."""

LEGEND = (
    "Top: the image; attention to each region in the last layer at the posterior mean, averaged "
    "over the querying regions; and its standard deviation divided by the mean. Bottom: the most "
    "probable answers, and the same two maps for attention from each word (row) to each word."
)


def prepare(folder: Path, force: bool) -> None:
    """Creates the folder; raises if it holds files that the demo did not write."""
    check_target(folder, PAGE, AUTHOR, force)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(document(TITLE, element("p", "Not finished yet."), AUTHOR))


def write(folder: Path, outcome: VisualOutcome, versions: dict[str, str]) -> None:
    """Writes the page, the noise curves and the measures."""
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
    """The HTML of the page."""
    names = ["attention", "noise", *(f"{name}, %" for name in COLUMNS.values())]
    body = join(
        element("h1", TITLE),
        element("p", INTRODUCTION),
        element("h2", "Clean and noisy images"),
        element("div", Markup(Table(names, table_rows(outcome)).html()), class_="scroll"),
        element("p", finding(outcome)),
        _svg(noise_figure(outcome), "Accuracy, confidence and calibration over noise"),
        element("h2", "Attention of the BABN model"),
        element("p", LEGEND),
        *(_section(heading, answer) for heading, answer in outcome.answers),
        element("p", _footer(outcome, versions), class_="muted"),
    )
    return document(f"{TITLE} (babn)", body, AUTHOR)


INTRODUCTION = (
    "Two small co-attention networks (MCAN) were trained to answer questions about images of "
    "coloured shapes. One has softmax attention; in the other (BABN) attention weights are random "
    "variables with a learned spread. Both were then tested on images with Gaussian noise on their "
    "features, which neither has seen in training. One run of each is too little to say which "
    "method is better; it shows what can be measured."
)


def finding(outcome: VisualOutcome) -> str:
    """The effect of noise on the BABN model, in sentences."""
    clean, noisy = (outcome.measures("belief", "sampled", noise) for noise in SHOWN)
    names = ("accuracy", "mean confidence", "mean mutual information")
    (right, sure, doubt), (right_noisy, sure_noisy, doubt_noisy) = (
        [measures[name] for name in names] for measures in (clean, noisy)
    )
    return (
        f"With noise of variance {SHOWN[1]:g}, the accuracy of BABN changes from {right:.0%} to "
        f"{right_noisy:.0%} and its mean confidence from {sure:.0%} to {sure_noisy:.0%}. The "
        "mutual information between answer and attention, which is the uncertainty due to random "
        f"attention, changes from {doubt:.4f} to {doubt_noisy:.4f} nats."
    )


def table_rows(outcome: VisualOutcome) -> list[list[str]]:
    """The rows of the table: clean images, and those with the paper's noise."""
    return [
        [
            method_name(row.method, row.mode),
            f"{row.noise:g}",
            *(_percent(row.measures.get(name)) for name in COLUMNS),
        ]
        for row in outcome.rows
        if row.noise in SHOWN
    ]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def noise_figure(outcome: VisualOutcome) -> Any:
    """Accuracy, confidence and ECE of both methods over the noise variance."""
    from babn_paper.plots.questions import noise_curves

    curves: dict[str, dict[str, list[float]]] = {}
    for row in outcome.rows:
        name = method_name(row.method, row.mode)
        of_method = curves.setdefault(name, {measure: [] for measure in CURVES})
        for measure, values in of_method.items():
            values.append(row.measures[measure])
    return noise_curves(NOISE, curves)


def _section(heading: str, answer: VisualAnswer) -> Markup:
    best = answer.candidates[0]
    text = (
        f"“{answer.question}” – “{best.answer}”, with probability {best.probability:.2f} ± "
        f"{best.std:.2f} over samples of attention; mutual information "
        f"{answer.mutual_information:.3f} nats."
    )
    figure = _svg(draw(answer), f"{answer.question} {best.answer}")
    return join(element("h3", heading), element("p", text), figure)


def _svg(figure: Any, label: str) -> Markup:
    from babn.plots import as_svg

    return element("figure", Markup(as_svg(figure, label)))


def _footer(outcome: VisualOutcome, versions: dict[str, str]) -> str:
    parts = ", ".join(f"{name} {value}" for name, value in versions.items())
    steps, seed = outcome.experiment["steps"], outcome.experiment["seed"]
    return f"Written by {AUTHOR} with seed {seed} and {steps} steps. {parts}."
