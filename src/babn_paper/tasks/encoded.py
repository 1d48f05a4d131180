"""Encoded examples: ragged tensors, and the batches that are cut from them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from babn.tensor_files import read_tensors, write_tensors

Item = TypeVar("Item")

Batch = dict[str, Tensor]
"""Arguments of a model by name."""

SIDE = "side/"
"""Prefix of the names of side tensors in a file."""

CHOICES = "/choices"
"""Key of the number of choices in a file's metadata; no argument has this name."""


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, concatenated.

    Attributes:
        values: All rows.
        offsets: Start of each row, and the end of the last one.
        padding: Value that shorter rows of a batch are padded with.
    """

    values: Int[Tensor, "total"]
    offsets: Int[Tensor, "ends"]
    padding: int = 0

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], padding: int = 0) -> "Ragged":
        """Concatenates rows."""
        lengths = torch.tensor([0, *map(len, rows)])
        values = torch.tensor([value for row in rows for value in row], dtype=torch.int32)
        return cls(values, lengths.cumsum(0), padding)

    @classmethod
    def cat(cls, parts: "Sequence[Ragged]") -> "Ragged":
        """Concatenates the rows of several ragged tensors with the same padding."""
        lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(each.lengths for each in parts)])
        values = torch.cat([each.values for each in parts])
        return cls(values, lengths.cumsum(0), parts[0].padding)

    @cached_property
    def lengths(self) -> Int[Tensor, "row"]:
        """Length of each row, on the CPU, where batches are planned."""
        return self.offsets.cpu().diff()

    @cached_property
    def starts(self) -> Int[Tensor, "row"]:
        """Start of each row, on the CPU."""
        return self.offsets.cpu()[:-1]

    @cached_property
    def longest(self) -> int:
        """Length of the longest row."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def pad(self, rows: Int[Tensor, "row"], length: int) -> Int[Tensor, "row length"]:
        """Returns some rows padded to a length, on the device of the values."""
        rows, device = rows.cpu(), self.values.device
        places = torch.arange(length, device=device)
        inside = places < self.lengths[rows, None].to(device)
        where = self.offsets[rows.to(device), None] + places
        where = where.clamp(max=max(len(self.values) - 1, 0))
        return torch.where(inside, self.values[where], self.padding).long()

    def to(self, device: torch.device) -> "Ragged":
        """Moves the tensors to a device."""
        return Ragged(self.values.to(device), self.offsets.to(device), self.padding)


class Lookup(ABC):
    """Makes arguments of a model batch by batch from data that examples share; is not saved."""

    keys: int = 0
    """Maximum number of attention keys in its arguments."""

    @abstractmethod
    def batch(self, rows: Int[Tensor, "row"]) -> Batch:
        """Returns the arguments for the examples with these indices, which are on the CPU."""

    @abstractmethod
    def to(self, device: torch.device) -> "Lookup":
        """Returns the lookup for a model on another device."""


@dataclass(frozen=True)
class Encoded:
    """The examples of a part as arguments of a model.

    Attributes:
        ragged: Arguments with one number for each token.
        fixed: Arguments with one row for each example.
        side: Tensors for decoding the outputs; the model does not get them.
        choices: Number of consecutive ragged rows that form one example. With more than one, these
            arguments of a batch have the shape (example, choice, token).
        lookups: Make further arguments for a batch; they are not saved.
    """

    ragged: Mapping[str, Ragged]
    fixed: Mapping[str, Tensor]
    side: Mapping[str, Ragged | Tensor] = field(default_factory=dict)
    choices: int = 1
    lookups: Sequence[Lookup] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def lengths(self) -> Int[Tensor, "example"]:
        """Number of tokens of each example, in its longest argument and choice."""
        longest = torch.stack([each.lengths for each in self.ragged.values()]).amax(0)
        return longest.unflatten(0, (-1, self.choices)).amax(1)

    def batch(self, rows: Int[Tensor, "row"], multiple: int = 8, least: int = 0) -> Batch:
        """Returns the arguments for some examples, each padded to a common length.

        Args:
            rows: Indices of the examples.
            multiple: Lengths are rounded up to a multiple of this, which GPUs prefer, but not
                beyond the longest example of the data.
            least: Minimum length.
        """
        rows = rows.cpu()
        lines = (rows[:, None] * self.choices + torch.arange(self.choices)).flatten()
        padded = {
            name: self._folded(each.pad(lines, max(least, min(each.longest, length))))
            for name, each in self.ragged.items()
            for length in [_round_up(int(each.lengths[lines].max()), multiple)]
        }
        fixed = {name: each[rows.to(each.device)] for name, each in self.fixed.items()}
        made = {name: each for lookup in self.lookups for name, each in lookup.batch(rows).items()}
        return padded | fixed | made

    def to(self, device: torch.device) -> "Encoded":
        """Moves the tensors to a device."""
        return Encoded(
            {name: each.to(device) for name, each in self.ragged.items()},
            {name: each.to(device) for name, each in self.fixed.items()},
            {name: each.to(device) for name, each in self.side.items()},
            self.choices,
            [lookup.to(device) for lookup in self.lookups],
        )

    def save(self, path: Path) -> None:
        """Writes everything but the lookups to one file."""
        side = {SIDE + name: each for name, each in self.side.items()}
        tensors: dict[str, Tensor] = {}
        padding: dict[str, str] = {CHOICES: str(self.choices)}
        for name, each in {**self.ragged, **self.fixed, **side}.items():
            if isinstance(each, Ragged):
                tensors |= {f"values/{name}": each.values, f"offsets/{name}": each.offsets}
                padding[name] = str(each.padding)
            else:
                tensors[f"fixed/{name}"] = each
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, padding)

    @classmethod
    def load(cls, path: Path) -> "Encoded":
        """Reads what `save` wrote."""
        tensors, padding = read_tensors(path)
        choices = int(padding.pop(CHOICES, 1))
        ragged = {
            name: Ragged(tensors[f"values/{name}"], tensors[f"offsets/{name}"], int(padding[name]))
            for name in padding
        }
        prefix = "fixed/"
        fixed = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        side = {n.removeprefix(SIDE): e for n, e in (ragged | fixed).items() if n.startswith(SIDE)}
        return cls(_without_side(ragged), _without_side(fixed), side, choices)

    def _folded(self, lines: Int[Tensor, "line token"]) -> Int[Tensor, "row *choice token"]:
        """Groups the lines of each example."""
        return lines if self.choices == 1 else lines.unflatten(0, (-1, self.choices))


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _without_side(named: Mapping[str, Item]) -> dict[str, Item]:
    return {name: each for name, each in named.items() if not name.startswith(SIDE)}
