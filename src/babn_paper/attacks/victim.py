"""The attacked model, whose predictions may be random, and the examples to attack."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import babn
from babn.attention.noise_source import NoiseSource, fold_in
from babn.conversion.override import overriding
from babn.errors import ConfigError, DataError
from babn.prediction.result import Prediction
from babn.prediction.sampling import evaluating
from babn.prediction.stored_settings import get_temperature
from babn_paper.attacks.plan import Plan
from babn_paper.experiments.evaluation import autocast
from babn_paper.experiments.training_state import TaskModel
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.glue import GlueTask
from babn_paper.tasks.own_texts import OwnClassification
from babn_paper.tasks.reading import Row
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import MEMORY, Part, Task, without_labels
from babn_paper.tasks.text_task import TextExample

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


class Victim:
    """Predicts class probabilities of texts.

    The noise depends on the plan's seed, the example and the number of the query. A resumed
    attack therefore has the same noise as an uninterrupted one, and two queries with the same text
    have different noise.

    Args:
        task_model: Model, task and experiment.
        plan: Defines the threat model.
    """

    def __init__(self, task_model: TaskModel, plan: Plan) -> None:
        self.task_model, self.plan = task_model, plan
        self.queries = 0
        self._example = 0

    @property
    def is_random(self) -> bool:
        """Whether predictions for the same text differ between queries."""
        return self.plan.threat != "mean"

    def begin(self, place: int) -> None:
        """Starts an example and resets its number of queries."""
        self._example, self.queries = place, 0

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> Float[Tensor, "text label"]:
        """Class probabilities of each text or text pair."""
        first, self.queries = self.queries, self.queries + len(texts)
        batch, own = self._encode(texts), fold_in(self.plan.seed, self._example)
        with torch.no_grad(), autocast(self.task_model.experiment, self.task_model.device):
            found = self._predict(batch, [fold_in(own, first + i) for i in range(len(texts))])
        # Attackers check that rows sum to 1 more strictly than float32 can satisfy.
        probs = found.probs.double().cpu()
        return probs / probs.sum(-1, keepdim=True)

    def _predict(self, batch: Batch, seeds: list[int]) -> Prediction:
        model, task = self.task_model.model, self.task_model.task
        if self.plan.threat == "average":
            memory = MEMORY if self.task_model.device.type == "cuda" else None
            return babn.predict(
                model,
                batch,
                self.plan.samples,
                seeds[0],
                antithetic=False,
                memory=memory,
                output=task.output,
            )
        mode = "sample" if self.plan.threat == "sample" else "mean"
        with evaluating(model), overriding(model, mode=mode, noise_source=NoiseSource(seeds)):
            logits = task.output(model(**batch)).float()
        return Prediction(logits[None], "softmax").tempered(get_temperature(model))

    def _encode(self, texts: Sequence[tuple[str, ...]]) -> Batch:
        task_model = self.task_model
        part = Part("attack", [TextExample(each, 0) for each in texts], "attack", "")
        encoded = task_model.task.encode(
            part, task_model.tokenizer, task_model.max_length, training=False
        )
        rows = torch.arange(len(texts))
        return without_labels(encoded.to(task_model.device).batch(rows, task_model.multiple))
