"""The protocol of tasks: a task reads its data, encodes it, loads a model for it, judges answers.

Adding a task means adding one file to this folder and one line to `catalogue.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from babn.errors import ConfigError
from babn.prediction.predict import TARGETS
from babn_paper.tasks.asking import Asking, ask_once
from babn_paper.tasks.encoded import Batch, Encoded

Example = TypeVar("Example")

Tokenizer = Any
"""A tokenizer of transformers, which has no type of its own."""

Asked = Iterator[tuple[Int[Tensor, "row"], Any]]
"""Places of examples, and what `Task.ask` made of them: for most tasks outputs of the model for
each sample and row, with one sample in mean mode, else several."""


@dataclass(frozen=True)
class Part(Generic[Example]):
    """The examples of one split, as people wrote them.

    Attributes:
        name: The split: `"train"`, `"dev"`, or another that the task names.
        examples: What was read.
        origin: Where it was read: a file, a data set on the hub, or `"builtin"`.
        fingerprint: Changes when the data does.
    """

    name: str
    examples: Sequence[Example]
    origin: str
    fingerprint: str


class Answers(ABC):
    """What a model answered to a part, kept so that every number can be computed without it."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the answers to a folder, which need not exist."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Every number that follows from the answers, by name; the task's score among them.

        Shares are fractions of one, as everywhere in babn; tables make percentages of them.
        """

    def notes(self) -> dict[str, str]:
        """What one has to know about the numbers, such as a metric's signature, by name."""
        return {}

    def named(self, method: str, seed: int) -> "Answers":
        """The answers under the name by which comparisons and reports tell methods apart."""
        return self

    def together(self, others: "Sequence[Answers]") -> "Answers | None":
        """The answers of an ensemble of models, of which this is one; `None` if there are none.

        Args:
            others: What the other members answered to the same examples.
        """
        return None


class Task(ABC, Generic[Example]):
    """What an experiment trains and tests on.

    Attributes:
        name: In configurations and folders.
        title: In tables.
        scores: Names of the measures that the paper's table shows.
        test_parts: Parts that a model is tested on after training.
        max_length: The most tokens that the task needs, unless a configuration says otherwise.
        multiple: Lengths of batches are multiples of this; 0 for what the device prefers.
        asked_together: Examples in a batch of test data.
        cached: Whether encoded data is worth keeping on disk.
    """

    name: str
    title: str
    scores: tuple[str, ...]
    test_parts: tuple[str, ...] = ("dev",)
    max_length: int = 128
    multiple: int = 0
    asked_together: int = 64
    cached: bool = True

    def configured(self, options: Mapping[str, Any]) -> "Task[Example]":
        """The task with options of a configuration; most tasks have none.

        Args:
            options: By name.
        """
        if options:
            raise ConfigError(
                f"task={self.name!r} has no options, but {sorted(options)} are given. Drop them."
            )
        return self

    def check_ready(self) -> None:
        """Refuses to begin where a package is missing that testing will need."""

    def title_of(self, origin: str) -> str:
        """The title for what was trained on, where stand-ins for the task's data are possible.

        Args:
            origin: Of the training data.
        """
        return self.title

    @abstractmethod
    def read(self, data: str, part: str) -> Part[Example]:
        """The examples of a part, checked.

        Args:
            data: `"builtin"`, `"hub"`, or a folder.
            part: The split to read.
        """

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part, which `read` would else refuse."""
        return True

    @abstractmethod
    def texts(self, examples: Sequence[Example]) -> Iterator[str]:
        """All texts of examples, from which a small model made on the spot takes its words."""

    @abstractmethod
    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """The pretrained model of a folder or of the hub, with a fresh head for the task.

        Args:
            name: The folder, or the model's name on the hub.
            **settings: Fields of the model's configuration, such as dropout rates.
        """

    @abstractmethod
    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with random weights and a head for the task.

        Args:
            sizes: Fields of its configuration.
        """

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """A model of `babn_paper.models` with random weights and a head for the task.

        Args:
            config: The class of its configuration.
            sizes: Fields of that.
        """
        raise ConfigError(
            f"task={self.name!r} asks no question about two texts, which {config.model_type} "
            "needs. Give another model."
        )

    @abstractmethod
    def encode(
        self, part: Part[Example], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Examples as tensors: the arguments of the model, and in training its answers."""

    def dry_run(self, encoded: Encoded) -> Batch:
        """Arguments for the dry run of conversion, which finds the model's attention."""
        return without_answers(encoded.batch(torch.tensor([0])))

    def ask(self, asking: Asking, batch: Batch, rows: Int[Tensor, "row"], number: int) -> Any:
        """What a model says of a batch.

        Args:
            asking: The model, and how to ask it.
            batch: Its arguments, without answers.
            rows: Places of the examples.
            number: Of the batch.
        """
        return ask_once(asking, batch, number, self.output)

    @abstractmethod
    def output(self, output: Any) -> Tensor:
        """The tensor of a model's output that holds the answers, one row for each input."""

    @abstractmethod
    def answers(self, part: Part[Example], encoded: Encoded, asked: Asked) -> Answers:
        """What the model's outputs for an encoded part mean."""

    def across(self, answers: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
        """Measures of a part that follow from several parts, by part and name.

        Args:
            answers: What the model answered to each part, asked in the same way.
        """
        return {}

    @abstractmethod
    def load_answers(self, folder: Path) -> Answers:
        """Reads what `Answers.save` wrote."""


def without_answers(batch: Batch) -> Batch:
    """A batch as the model gets it when nobody tells it the answers."""
    return {name: value for name, value in batch.items() if name not in TARGETS}
