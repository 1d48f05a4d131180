"""The examples that are attacked: the same for every model, the bad ones among them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from babn.errors import ConfigError, DataError
from babn_paper.tasks.glue import GlueTask
from babn_paper.tasks.reading import Row
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import Task


@dataclass(frozen=True)
class Target:
    """An example to attack.

    Attributes:
        place: Its line in the part, from 0.
        texts: Its texts by column.
        label: The number of the right class; -1 if it is not known.
        problem: Why it cannot be attacked; empty if it can.
    """

    place: int
    texts: Mapping[str, str]
    label: int
    problem: str = ""


@dataclass(frozen=True)
class Targets:
    """What a part has, in the order in which it is attacked.

    Attributes:
        rows: The lines as they stand.
        order: Their places, shuffled.
        task: How lines are read.
        origin: Where they were read.
        fingerprint: Changes when the data does.
    """

    rows: list[Row]
    order: list[int]
    task: GlueTask
    origin: str
    fingerprint: str

    def first(self, count: int) -> Iterator[Target]:
        """The first examples in the shuffled order; all of them if there are fewer."""
        return (_target(self.task, self.rows[place], place) for place in self.order[:count])


def read_targets(task: GlueTask, data: str, part: str, seed: int) -> Targets:
    """A part in an order that depends on nothing but its size and the seed.

    Args:
        task: The task.
        data: `"builtin"`, `"hub"`, or a folder.
        part: The split.
        seed: Another number gives another order.
    """
    rows, origin, fingerprint = task.rows(data, part)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return Targets(rows, order.tolist(), task, origin, fingerprint)


def check_task(task: Task[Any]) -> GlueTask:
    """The task, if it asks texts for a class."""
    if isinstance(task, GlueTask) and isinstance(task.target, Classes):
        return task
    raise ConfigError(
        f"task={task.name!r} cannot be attacked: attacks change the class that a model gives to a "
        "text or a pair. Give a run of a task such as mrpc, cola, rte, qqp or sst2."
    )


def class_names(task: GlueTask) -> tuple[str, ...]:
    """The names of the classes in the order of their numbers."""
    assert isinstance(task.target, Classes)
    return task.target.names


def _target(task: GlueTask, row: Row, place: int) -> Target:
    texts = {column: str(row.values.get(column) or "") for column in task.columns}
    try:
        label = int(task.example(row).label)
    except DataError as error:
        return Target(place, texts, -1, str(error))
    if not any(character.isalnum() for text in texts.values() for character in text):
        return Target(place, texts, label, f"{row.place}: there is no word to change.")
    return Target(place, texts, label)
