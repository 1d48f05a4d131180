"""Examples as tensors of different lengths, from which batches are cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from babn.tensor_files import read_tensors, write_tensors
from babn_paper.tasks.lookups import Batch as Batch
from babn_paper.tasks.lookups import Lookup
from babn_paper.tasks.ragged import Ragged

Item = TypeVar("Item")

SIDE = "side/"
"""What names of side tensors begin with in a file."""

CHOICES = "/choices"
"""Where a file says how many rows belong to one example; no argument is called so."""


@dataclass(frozen=True)
class Encoded:
    """A part's examples as the arguments of a model.

    Attributes:
        ragged: Arguments with one number for each token.
        fixed: Arguments with one row for each example.
        side: What the task needs to make sense of outputs; the model never sees it.
        choices: Rows of the ragged arguments that belong to one example, one after the other; with
            more than one, those arguments of a batch have the shape (example, choice, token).
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
        """Tokens of each example, in its longest argument and choice."""
        longest = torch.stack([each.lengths for each in self.ragged.values()]).amax(0)
        return longest.unflatten(0, (-1, self.choices)).amax(1)

    def batch(self, rows: Int[Tensor, "row"], multiple: int = 8, least: int = 0) -> Batch:
        """The arguments for some examples, each padded to a common length.

        Args:
            rows: Places of the examples.
            multiple: Lengths are multiples of this, which GPUs prefer, unless that would be more
                than the longest example has.
            least: Lengths are at least this, whatever the examples have.
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
        """The same on another device."""
        return Encoded(
            {name: each.to(device) for name, each in self.ragged.items()},
            {name: each.to(device) for name, each in self.fixed.items()},
            {name: each.to(device) for name, each in self.side.items()},
            self.choices,
            [lookup.to(device) for lookup in self.lookups],
        )

    def save(self, path: Path) -> None:
        """Writes one file."""
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
        """Lines that belong to one example, put together."""
        return lines if self.choices == 1 else lines.unflatten(0, (-1, self.choices))


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _without_side(named: Mapping[str, Item]) -> dict[str, Item]:
    return {name: each for name, each in named.items() if not name.startswith(SIDE)}
