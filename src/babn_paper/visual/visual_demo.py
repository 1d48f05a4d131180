"""The visual demo: two models answer questions about images of shapes, clean and noisy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.progress import Progress
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.visual.question import QuestionSettings, VisualAnswer, load_run
from babn_paper.visual.question_figure import (
    answer_example,
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
