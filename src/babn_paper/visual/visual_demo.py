"""The visual demo: two models answer questions about clean and noisy images, on an HTML page."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from babn.evaluation.html_pages import Markup, check_target, document, element, join
from babn.evaluation.tables import Table
from babn.progress import Progress
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.naming import method_name
from babn_paper.experiments.run import run
from babn_paper.visual.question import (
    QuestionSettings,
    VisualAnswer,
    answer_example,
    draw,
    load_run,
    most_and_least_confident,
    read_questions,
)

METHODS = {"softmax": "softmax", "belief": "BABN"}
"""The attention methods and their names."""

PARTS = {"test": 0.0, "noisy=2": 2.0, "noisy": 5.0, "noisy=10": 10.0}
"""Test parts and their noise variances."""

NOISE = tuple(PARTS.values())

EXPERIMENT: dict[str, Any] = {
    "task": "easy-vqa",
    "model": "small",
    "data": "generated",
    "steps": 700,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "dropout": 0.02,
    "samples": 6,
    "options": {"noise": [2.0, 10.0]},
}
QUICK = {"steps": 12, "batch_size": 16, "samples": 2}


@dataclass(frozen=True)
class Row:
    """Measures of a model at one noise level.

    Attributes:
        method: The attention method.
        mode: The prediction mode.
        noise: Variance of the noise.
        measures: All measures by name.
    """

    method: str
    mode: str
    noise: float
    measures: dict[str, float]


@dataclass(frozen=True)
class VisualOutcome:
    """Results of the demo.

    Attributes:
        rows: Measures by method, mode and noise.
        answers: Answers of BABN to clean and noisy questions, each with a heading.
        experiment: Fields that both runs share.
    """

    rows: list[Row]
    answers: list[tuple[str, VisualAnswer]]
    experiment: dict[str, Any]

    def measures(self, method: str, mode: str, noise: float) -> dict[str, float]:
        """Measures of a model in one mode at one noise level."""
        return next(
            row.measures
            for row in self.rows
            if (row.method, row.mode, row.noise) == (method, mode, noise)
        )


def run_visual(folder: Path, seed: int, quick: bool, progress: Progress) -> VisualOutcome:
    """Trains both models and tests them at every noise level.

    Args:
        folder: Folder for the runs; existing ones are replaced.
        seed: Seed of both runs.
        quick: Train for a few seconds only, as a smoke test.
        progress: Receives the number of finished steps and examples.
    """
    fields = EXPERIMENT | (QUICK if quick else {}) | {"seed": seed}
    rows: list[Row] = []
    for method in METHODS:
        experiment = Experiment.from_dict({**fields, "method": method})
        named = _Named(progress, METHODS[method])
        found = run(experiment, folder / method, overwrite=True, progress=named)["measures"]
        rows += _rows(found, method)
    return VisualOutcome(rows, example_answers(folder / "belief", seed), fields)


def _rows(found: dict[str, dict[str, dict[str, float]]], method: str) -> list[Row]:
    return [
        Row(method, mode, noise, measures)
        for part, noise in PARTS.items()
        for mode, measures in found[part].items()
    ]


def example_answers(folder: Path, seed: int) -> list[tuple[str, VisualAnswer]]:
    """The most confident answer, clean and with noise, and the least confident one."""
    task_model = load_run(folder)
    part = read_questions(task_model)
    most, least = most_and_least_confident(task_model, part)
    examples = [
        ("The most confident answer", most, 0.0),
        ("The same question with noise of variance 5 on the image features", most, 5.0),
        ("The least confident answer", least, 0.0),
    ]
    return [
        (
            heading,
            answer_example(task_model, part, number, QuestionSettings(noise=noise, seed=seed)),
        )
        for heading, number, noise in examples
    ]


class _Named(Progress):
    """Forwards progress with a name before every task."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name

    def begin(self, task: str, total: int, done: int = 0) -> None:
        self.progress.begin(f"{self.name}: {task}", total, done)

    def step(self, count: int, note: str = "") -> None:
        self.progress.step(count, note)


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
        element("div", Table(names, table_rows(outcome)).html(), class_="scroll"),
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
