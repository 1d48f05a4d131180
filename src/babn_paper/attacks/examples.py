"""The examples to attack, which are the same for every model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from babn.errors import ConfigError, DataError
from babn_paper.tasks.glue import GlueTask
from babn_paper.tasks.own.texts import OwnClassification
from babn_paper.tasks.reading import Row
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import Task

TextClassifier = GlueTask | OwnClassification
"""Tasks whose models can be attacked, if they predict classes."""


@dataclass(frozen=True)
class Target:
    """An example to attack.

    Attributes:
        place: Its row in the part of the data, counted from 0.
        texts: Its texts by column.
        label: Index of the true class; -1 if it is unknown.
        problem: Why it cannot be attacked; empty if it can.
    """

    place: int
    texts: Mapping[str, str]
    label: int
    problem: str = ""


@dataclass(frozen=True)
class Targets:
    """A part of the data in the order in which it is attacked.

    Attributes:
        rows: The rows as they were read.
        order: Their indices, shuffled.
        task: Turns rows into examples.
        origin: Source of the data.
        fingerprint: Fingerprint of the data.
    """

    rows: list[Row]
    order: list[int]
    task: TextClassifier
    origin: str
    fingerprint: str

    def first(self, count: int) -> Iterator[Target]:
        """The first examples in the shuffled order; fewer if the part is smaller."""
        return (_target(self.task, self.rows[place], place) for place in self.order[:count])


def read_targets(task: TextClassifier, data: str, part: str, seed: int) -> Targets:
    """Reads a part of the data and shuffles it; the order depends on its size and the seed only.

    Args:
        task: The task.
        data: `"builtin"`, `"hub"`, or a folder.
        part: The part to read.
        seed: Seed of the order.
    """
    rows, origin, fingerprint = task.rows(data, part)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return Targets(rows, order.tolist(), task, origin, fingerprint)


def check_task(task: Task[Any]) -> TextClassifier:
    """The task, if it is text classification; raises otherwise."""
    if isinstance(task, TextClassifier) and isinstance(task.target, Classes):
        return task
    raise ConfigError(
        f"task={task.name!r} cannot be attacked: attacks need a classifier of texts or pairs. Give "
        "a run of classification, or of a task such as mrpc, cola, rte, qqp or sst2."
    )


def class_names(task: TextClassifier) -> tuple[str, ...]:
    """Names of the classes, by index."""
    assert isinstance(task.target, Classes)
    return task.target.names


def _target(task: TextClassifier, row: Row, place: int) -> Target:
    texts = {column: str(row.values.get(column) or "") for column in task.columns}
    try:
        label = int(task.example(row).label)
    except DataError as error:
        return Target(place, texts, -1, str(error))
    if not any(character.isalnum() for text in texts.values() for character in text):
        return Target(place, texts, label, f"{row.place}: there is no word to change.")
    return Target(place, texts, label)
