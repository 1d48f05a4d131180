"""Experiments of a second or two."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from babn.progress import Progress
from babn_paper.experiments.experiment import Experiment

TINY: dict[str, Any] = {
    "task": "mrpc",
    "model": "small",
    "data": "builtin",
    "steps": 6,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "max_length": 24,
    "samples": 3,
}


def tiny(**fields: Any) -> Experiment:
    return Experiment.from_dict(TINY | fields)


class StopsAt(Progress):
    """Ends the process's work in the middle of training, as a crash would."""

    def __init__(self, step: int) -> None:
        self.left = step

    def begin(self, task: str, total: int, done: int = 0) -> None:
        pass

    def step(self, count: int, note: str = "") -> None:
        self.left -= count
        if self.left <= 0:
            raise RuntimeError("crash")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
