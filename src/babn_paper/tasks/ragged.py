"""Rows of different lengths in one tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor


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

    @cached_property
    def lengths(self) -> Int[Tensor, "row"]:
        """How long each row is; always in main memory, where sizes of batches are decided."""
        return self.offsets.cpu().diff()

    @cached_property
    def starts(self) -> Int[Tensor, "row"]:
        """Where each row begins; in main memory as well."""
        return self.offsets.cpu()[:-1]

    @cached_property
    def longest(self) -> int:
        """The length of the longest row."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def pad(self, rows: Int[Tensor, "row"], length: int) -> Int[Tensor, "row length"]:
        """Some rows, filled up to a length, on the device of the values."""
        rows, device = rows.cpu(), self.values.device
        places = torch.arange(length, device=device)
        inside = places < self.lengths[rows, None].to(device)
        where = self.offsets[rows.to(device), None] + places
        where = where.clamp(max=max(len(self.values) - 1, 0))
        return torch.where(inside, self.values[where], self.padding).long()

    def to(self, device: torch.device) -> "Ragged":
        """The same on another device."""
        return Ragged(self.values.to(device), self.offsets.to(device), self.padding)
