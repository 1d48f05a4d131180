"""What a text is asked for: one of several classes, or a number."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from babn.errors import DataError
from babn.prediction.predict import Activation
from babn_paper.tasks.lines import Row

MISSING = {"", "-", "-1", "-1.0", "None"}
"""How data sets write that a label is not known."""


class Target(ABC):
    """How labels are read, and which head answers with them."""

    activation: Activation
    columns: tuple[str, ...]

    def read(self, row: Row) -> float:
        """The label of a row."""
        column = next((name for name in self.columns if name in row.values), None)
        if column is None:
            wanted = " or ".join(map(repr, self.columns))
            raise DataError(
                f"{row.place}: there is no column {wanted}, only {sorted(row.values)}. Give data "
                "with labels."
            )
        value = str(row.values[column]).strip()
        if value in MISSING:
            raise DataError(
                f"{row.place}: {column}={value!r} means that the label is not known. Give data "
                "with labels, such as the dev split."
            )
        return self.parse(value, f"{row.place}: {column}={value!r}")

    @abstractmethod
    def parse(self, value: str, place: str) -> float:
        """The label that is written so."""

    @abstractmethod
    def tensor(self, labels: Sequence[float]) -> Tensor:
        """Labels as the model takes them."""

    @abstractmethod
    def head(self) -> dict[str, Any]:
        """The fields of a model's configuration that make its head."""


@dataclass(frozen=True)
class Classes(Target):
    """One of several classes, written by name or by number.

    Attributes:
        names: In the order of their numbers.
    """

    names: tuple[str, ...]
    activation = "softmax"
    columns = ("label",)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Every way to write a class."""
        return {way: i for i, name in enumerate(self.names) for way in (name, str(i))}

    def parse(self, value: str, place: str) -> float:
        """The number of the class."""
        if value not in self._numbers:
            raise DataError(
                f"{place} is not a class. Give one of {list(self.names)}, or a number from 0 to "
                f"{len(self.names) - 1}."
            )
        return self._numbers[value]

    def tensor(self, labels: Sequence[float]) -> Tensor:
        """Class numbers."""
        return torch.tensor(labels, dtype=torch.int64)

    def head(self) -> dict[str, Any]:
        """One output for each class."""
        return {
            "num_labels": len(self.names),
            "id2label": dict(enumerate(self.names)),
            "label2id": {name: i for i, name in enumerate(self.names)},
            "problem_type": "single_label_classification",
        }


@dataclass(frozen=True)
class Number(Target):
    """A number between two others.

    Attributes:
        lowest: The smallest that is allowed.
        highest: The largest.
    """

    lowest: float
    highest: float
    activation = "identity"
    columns = ("label", "score")

    def parse(self, value: str, place: str) -> float:
        """The number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.lowest <= number <= self.highest:
            raise DataError(
                f"{place} is not possible. Give a number from {self.lowest:g} to {self.highest:g}."
            )
        return number

    def tensor(self, labels: Sequence[float]) -> Tensor:
        """The numbers in single precision."""
        return torch.tensor(labels, dtype=torch.float32)

    def head(self) -> dict[str, Any]:
        """One output, trained by squared error."""
        return {
            "num_labels": 1,
            "id2label": {0: "score"},
            "label2id": {"score": 0},
            "problem_type": "regression",
        }
