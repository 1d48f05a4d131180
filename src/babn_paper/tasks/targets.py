"""Labels of texts: one of several classes, or a number."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from babn.errors import DataError
from babn.prediction.result import Activation
from babn_paper.tasks.reading import Row

MISSING = {"", "-", "-1", "-1.0", "None"}
"""How data sets mark missing labels."""


class Target(ABC):
    """Reads labels and configures the head that predicts them."""

    activation: Activation
    columns: tuple[str, ...]

    def read(self, row: Row) -> float:
        """Reads the label of a row."""
        column = row.first(self.columns, "Give data with labels.")
        value = str(row.values[column]).strip()
        if value in MISSING:
            raise DataError(
                f"{row.place}: {column}={value!r} marks a missing label. Give data with labels, "
                "such as the dev split."
            )
        return self.parse(value, f"{row.place}: {column}={value!r}")

    @abstractmethod
    def parse(self, value: str, place: str) -> float:
        """Parses a label."""

    @abstractmethod
    def tensor(self, labels: Sequence[float]) -> Tensor:
        """Returns labels as a tensor for the model."""

    @abstractmethod
    def head(self) -> dict[str, Any]:
        """Returns the fields of the model configuration that define the head."""


@dataclass(frozen=True)
class Classes(Target):
    """One of several classes, given by name or by index.

    Attributes:
        names: Names by index.
    """

    names: tuple[str, ...]
    activation = "softmax"
    columns = ("label",)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Class indices by name and by index as text."""
        return {way: i for i, name in enumerate(self.names) for way in (name, str(i))}

    def parse(self, value: str, place: str) -> float:
        """Returns the index of the class."""
        if value not in self._numbers:
            raise DataError(
                f"{place} is not a class. Give one of {list(self.names)}, or an index from 0 to "
                f"{len(self.names) - 1}."
            )
        return self._numbers[value]

    def tensor(self, labels: Sequence[float]) -> Tensor:
        """Returns class indices."""
        return torch.tensor(labels, dtype=torch.int64)

    def head(self) -> dict[str, Any]:
        """Configures one output for each class."""
        return {
            "num_labels": len(self.names),
            "id2label": dict(enumerate(self.names)),
            "label2id": {name: i for i, name in enumerate(self.names)},
            "problem_type": "single_label_classification",
        }


@dataclass(frozen=True)
class Number(Target):
    """A number in an interval.

    Attributes:
        lowest: Smallest allowed value.
        highest: Largest allowed value.
    """

    lowest: float
    highest: float
    activation = "identity"
    columns = ("label", "score")

    def parse(self, value: str, place: str) -> float:
        """Returns the number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.lowest <= number <= self.highest:
            raise DataError(
                f"{place} is invalid. Give a number from {self.lowest:g} to {self.highest:g}."
            )
        return number

    def tensor(self, labels: Sequence[float]) -> Tensor:
        """Returns the numbers in single precision."""
        return torch.tensor(labels, dtype=torch.float32)

    def head(self) -> dict[str, Any]:
        """Configures one output, trained with the squared error."""
        return {
            "num_labels": 1,
            "id2label": {0: "score"},
            "label2id": {"score": 0},
            "problem_type": "regression",
        }
