"""Examples as tensors of different lengths, from which batches are cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from babn.files import replace_file

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, one after the other.

    Attributes:
        values: All rows joined.
        offsets: Where each row begins, and where the last one ends.
        padding: What fills up shorter rows of a batch.
    """

    values: Int[Tensor, "total"]
    offsets: Int[Tensor, "ends"]
    padding: int = 0

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], padding: int = 0) -> "Ragged":
        """Joins rows."""
        lengths = torch.tensor([0, *map(len, rows)])
        values = torch.tensor([value for row in rows for value in row], dtype=torch.int32)
        return cls(values, lengths.cumsum(0), padding)

    @property
    def lengths(self) -> Int[Tensor, "row"]:
        """How long each row is."""
        return self.offsets.diff()

    def pad(self, rows: Int[Tensor, "row"], length: int) -> Int[Tensor, "row length"]:
        """Some rows, filled up to a length."""
        places = torch.arange(length, device=rows.device)
        inside = places < self.lengths[rows, None]
        where = (self.offsets[rows, None] + places).clamp(max=max(len(self.values) - 1, 0))
        return torch.where(inside, self.values[where], self.padding).long()


@dataclass(frozen=True)
class Encoded:
    """A part's examples as the arguments of a model.

    Attributes:
        ragged: Arguments with one number for each token.
        fixed: Arguments with one row for each example.
    """

    ragged: Mapping[str, Ragged]
    fixed: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def lengths(self) -> Int[Tensor, "example"]:
        """Tokens of each example, in its longest argument."""
        return torch.stack([each.lengths for each in self.ragged.values()]).amax(0)

    def batch(self, rows: Int[Tensor, "row"], multiple: int = 8) -> Batch:
        """The arguments for some examples, each padded to a common length.

        Args:
            rows: Places of the examples.
            multiple: Lengths are multiples of this, which GPUs prefer.
        """
        padded = {
            name: each.pad(rows, -(-int(each.lengths[rows].max()) // multiple) * multiple)
            for name, each in self.ragged.items()
        }
        return padded | {name: each[rows] for name, each in self.fixed.items()}

    def to(self, device: torch.device) -> "Encoded":
        """The same on another device."""
        ragged = {
            name: Ragged(each.values.to(device), each.offsets.to(device), each.padding)
            for name, each in self.ragged.items()
        }
        return Encoded(ragged, {name: each.to(device) for name, each in self.fixed.items()})

    def save(self, path: Path) -> None:
        """Writes one file."""
        tensors = {f"fixed/{name}": each for name, each in self.fixed.items()}
        for name, each in self.ragged.items():
            tensors[f"values/{name}"] = each.values
            tensors[f"offsets/{name}"] = each.offsets
        padding = {name: str(each.padding) for name, each in self.ragged.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda partial: save_file(tensors, partial, padding))

    @classmethod
    def load(cls, path: Path) -> "Encoded":
        """Reads what `save` wrote."""
        with safe_open(path, "pt") as file:
            padding = file.metadata() or {}
        tensors = load_file(path)
        ragged = {
            name: Ragged(tensors[f"values/{name}"], tensors[f"offsets/{name}"], int(padding[name]))
            for name in padding
        }
        prefix = "fixed/"
        fixed = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        return cls(ragged, fixed)
