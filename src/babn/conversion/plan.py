"""Which attention calls a model makes, and how they form chains."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

import torch

from babn.attention.rule import ChainShape, RuleConfig
from babn.validation import MOST, shown


@dataclass(frozen=True)
class Call:
    """One attention call of a forward pass, as the dry run saw it.

    Attributes:
        path: Path of the calling module inside the converted model.
        module: Class of the calling module.
        route: How the call is reached: `"transformers"`, `"softmax"`, `"multihead"` or `"sdpa"`.
        heads: Attention heads.
        head_dim: Size of one head's keys.
        queries: Number of queries in the dry run.
        keys: Number of keys in the dry run.
        windowed: Whether queries see a sliding window of keys.
        crossed: Whether keys come from another sequence than queries.
        rowwise: Whether queries differ in the keys that they see, as in causal models.
        order: Which call of the pass it is.
    """

    path: str
    module: str
    route: str
    heads: int
    head_dim: int
    queries: int
    keys: int
    windowed: bool = False
    crossed: bool = False
    rowwise: bool = False
    order: int = 0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Call":
        """A call of plain values, as a JSON file has them, whose types and signs are checked."""
        call = cls(**values)
        for name, kind in get_type_hints(cls).items():
            value = getattr(call, name)
            least = 1 if name in ("heads", "head_dim") else 0
            if type(value) is not kind or (kind is int and not least <= value <= MOST):
                wanted = f"a number from {least} to {MOST}" if kind is int else f"a {kind.__name__}"
                raise ValueError(f"{name}={shown(value)} of an attention call is not {wanted}.")
        return call

    @property
    def family(self) -> tuple[Any, ...]:
        """What the calls of one chain have in common: all but the layer's number."""
        path = re.sub(r"\d+", "*", self.path)
        sizes = self.heads, self.head_dim, self.queries, self.keys
        return path, *sizes, self.windowed, self.rowwise


@dataclass(frozen=True)
class Chain:
    """Attention calls that form one belief network, in the order of a forward pass."""

    name: str
    calls: tuple[Call, ...]

    def shape(self, config: RuleConfig) -> ChainShape:
        """The sizes that the rule needs, with parameters shared as the configuration says."""
        if config.share == "all":
            sets = [0] * len(self.calls)
        elif config.share == "none":
            sets = list(range(len(self.calls)))
        else:
            paths = list(dict.fromkeys(call.path for call in self.calls))
            sets = [paths.index(call.path) for call in self.calls]
        first = self.calls[0]
        return ChainShape(first.heads, first.head_dim, tuple(sets), first.rowwise)

    def parameters(self, config: RuleConfig) -> int:
        """How many parameters the rule adds for this chain."""
        with torch.device("meta"):
            return sum(p.numel() for p in config.build(self.shape(config)).parameters())


def group(calls: Iterable[Call]) -> tuple[Chain, ...]:
    """Sorts calls into chains."""
    families: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        families.setdefault(call.family, []).append(call)
    names = [family[0] or "root" for family in families]
    return tuple(
        Chain(name if names.count(name) == 1 else f"{name}#{names[:i].count(name)}", tuple(members))
        for i, (name, members) in enumerate(zip(names, families.values(), strict=True))
    )


def to_list(chains: Sequence[Chain]) -> list[dict[str, Any]]:
    """Plain values, for a JSON file."""
    return [asdict(chain) for chain in chains]


def from_list(values: Iterable[dict[str, Any]]) -> tuple[Chain, ...]:
    """The inverse of `to_list`."""
    return tuple(
        Chain(str(chain["name"]), tuple(map(Call.from_dict, chain["calls"]))) for chain in values
    )
