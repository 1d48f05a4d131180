"""The visual demo: two models learn to answer questions about shapes, and meet noisy images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.progress import Progress
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.visual.question import Asking, Look, load_run
from babn_paper.visual.question_figure import ask_example, questions_of, surest_and_least_sure

RULES = {"softmax": "softmax", "belief": "BABN"}
"""The rules, and what they are called."""

PARTS = {"test": 0.0, "noisy=2": 2.0, "noisy": 5.0, "noisy=10": 10.0}
"""Parts with their variances of noise."""

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
    """What a model came to at one level of noise.

    Attributes:
        rule: The attention rule.
        mode: How the model was asked.
        noise: Variance of the noise.
        measures: All measures by name.
    """

    rule: str
    mode: str
    noise: float
    measures: dict[str, float]


@dataclass(frozen=True)
class VisualOutcome:
    """What the demo found.

    Attributes:
        rows: Measures by rule, way of asking and noise.
        looks: Questions that BABN was asked, clean and noisy, each with its heading.
        experiment: Fields that both runs have in common.
    """

    rows: list[Row]
    looks: list[tuple[str, Look]]
    experiment: dict[str, Any]

    def measures(self, rule: str, mode: str, noise: float) -> dict[str, float]:
        """What a model came to, asked in one way at one level of noise."""
        return next(
            row.measures
            for row in self.rows
            if (row.rule, row.mode, row.noise) == (rule, mode, noise)
        )


def run_visual(folder: Path, seed: int, quick: bool, progress: Progress) -> VisualOutcome:
    """Trains both models in sub-folders, and asks them at every level of noise.

    Args:
        folder: Where the runs are kept; finished ones are begun again.
        seed: Another number gives other runs.
        quick: Train for a few seconds only, to see that everything runs.
        progress: Is told how far it has come.
    """
    fields = EXPERIMENT | (QUICK if quick else {}) | {"seed": seed}
    rows: list[Row] = []
    for rule in RULES:
        experiment = Experiment.from_dict({**fields, "rule": rule})
        named = _Named(progress, RULES[rule])
        found = run(experiment, folder / rule, overwrite=True, progress=named)["measures"]
        rows += _rows(found, rule)
    return VisualOutcome(rows, looks(folder / "belief", seed), fields)


def _rows(found: dict[str, dict[str, dict[str, float]]], rule: str) -> list[Row]:
    return [
        Row(rule, mode, noise, measures)
        for part, noise in PARTS.items()
        for mode, measures in found[part].items()
    ]


def looks(folder: Path, seed: int) -> list[tuple[str, Look]]:
    """A clear and an unclear question, and the clear one again with noise."""
    task_model = load_run(folder)
    part = questions_of(task_model)
    clear, unclear = surest_and_least_sure(task_model, part)
    asked = [
        ("A question that the model is sure of", clear, 0.0),
        ("The same with noise of variance 5 on the image's features", clear, 5.0),
        ("A question that it is least sure of", unclear, 0.0),
    ]
    return [
        (heading, ask_example(task_model, part, number, Asking(noise=noise, seed=seed)))
        for heading, number, noise in asked
    ]


class _Named(Progress):
    """Tells another progress, with a name before every task."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name

    def begin(self, task: str, total: int, done: int = 0) -> None:
        self.progress.begin(f"{self.name}: {task}", total, done)

    def step(self, count: int, note: str = "") -> None:
        self.progress.step(count, note)
