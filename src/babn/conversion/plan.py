"""The attention calls of a model: which layers are converted, and how they form chains."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, get_type_hints

import torch

from babn.attention.method import ALL, COUNTED, FORMS, NUMBER, ChainShape, MethodConfig, terms_of
from babn.errors import ConfigError
from babn.validation import MOST, shown


@dataclass(frozen=True)
class Call:
    """One attention call of a forward pass, as recorded in the dry run.

    Attributes:
        path: Path of the calling module inside the converted model.
        module: Class of the calling module.
        route: How the call is intercepted: `"transformers"`, `"softmax"`, `"multihead"` or
            `"sdpa"`.
        heads: Attention heads.
        head_dim: Size of one head's keys.
        queries: Number of queries in the dry run.
        keys: Number of keys in the dry run.
        windowed: Whether attention has a sliding window.
        crossed: Whether it is cross-attention.
        rowwise: Whether queries attend to different sets of keys, as in causal models.
        order: Index of the call in the forward pass.
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
        """A call from a JSON object, with validated types and signs."""
        call = cls(**values)
        for name, kind in get_type_hints(cls).items():
            value = getattr(call, name)
            least = 1 if name in ("heads", "head_dim") else 0
            if type(value) is not kind or (kind is int and not least <= value <= MOST):
                wanted = f"a number from {least} to {MOST}" if kind is int else f"a {kind.__name__}"
                raise ValueError(f"{name}={shown(value)} of an attention call is not {wanted}.")
        return call

    @property
    def stack(self) -> str:
        """The module's path without layer numbers, which the layers of one stack share."""
        return re.sub(r"\d+", "*", self.path)

    @property
    def family(self) -> tuple[Any, ...]:
        """The properties that the calls of one chain share: all but the layer number."""
        sizes = self.heads, self.head_dim, self.queries, self.keys
        return self.stack, *sizes, self.windowed, self.rowwise


@dataclass(frozen=True)
class Chain:
    """Attention calls that form one belief network, in the order of a forward pass."""

    name: str
    calls: tuple[Call, ...]

    def shape(self, config: MethodConfig) -> ChainShape:
        """The sizes that the method needs, with parameters shared as configured."""
        if config.share == "all":
            sets = [0] * len(self.calls)
        elif config.share == "none":
            sets = list(range(len(self.calls)))
        else:
            paths = list(dict.fromkeys(call.path for call in self.calls))
            sets = [paths.index(call.path) for call in self.calls]
        first = self.calls[0]
        return ChainShape(first.heads, first.head_dim, tuple(sets), first.rowwise)

    def parameters(self, config: MethodConfig) -> int:
        """Number of parameters that the method adds for this chain."""
        with torch.device("meta"):
            return sum(p.numel() for p in config.build(self.shape(config)).parameters())


def group(calls: Iterable[Call]) -> tuple[Chain, ...]:
    """Groups calls into chains."""
    families: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        families.setdefault(call.family, []).append(call)
    names = [family[0] or "root" for family in families]
    return tuple(
        Chain(name if names.count(name) == 1 else f"{name}#{names[:i].count(name)}", tuple(members))
        for i, (name, members) in enumerate(zip(names, families.values(), strict=True))
    )


def from_list(values: Iterable[dict[str, Any]]) -> tuple[Chain, ...]:
    """Chains from JSON values."""
    return tuple(
        Chain(str(chain["name"]), tuple(map(Call.from_dict, chain["calls"]))) for chain in values
    )


def choose(calls: Sequence[Call], layers: str) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """Splits calls into those that are converted and those that are kept.

    Layer numbers count the calls of a stack in call order. A stack holds the calls whose module
    paths differ in numbers only: a decoder has one stack, an encoder-decoder three. A module that
    is called several times, as in ALBERT, is one layer for each call.

    Args:
        calls: All calls, in call order.
        layers: The chosen layers, as in `MethodConfig.layers`.
    """
    stacks = list(stacks_of(calls).values())
    taken: set[int] = set()
    for term in terms_of(layers):
        found = {call.order for stack in stacks for call in _matching(term, stack)}
        if not found:
            raise ConfigError(
                f"layers={layers!r}: {term!r} matches no attention call. There are "
                f"{describe_stacks(calls)}. Give {FORMS}."
            )
        taken |= found
    chosen = tuple(call for call in calls if call.order in taken)
    return chosen, tuple(call for call in calls if call.order not in taken)


def stacks_of(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Calls by stack."""
    stacks: dict[str, list[Call]] = {}
    for call in calls:
        stacks.setdefault(call.stack, []).append(call)
    return stacks


def describe_stacks(calls: Iterable[Call]) -> str:
    """The stacks and their layer numbers, for an error message."""
    return ", ".join(
        f"{name or 'root'} (0 to {len(stack) - 1})" for name, stack in stacks_of(calls).items()
    )


def _matching(term: str, stack: list[Call]) -> list[Call]:
    """The calls of a stack that match a term."""
    if term == ALL:
        return stack
    if counted := COUNTED.fullmatch(term):
        count = int(counted[2])
        return stack[:count] if counted[1] == "first" else stack[-count:]
    if NUMBER.fullmatch(term):
        number = int(term)
        return stack[number : number + 1 or None]
    return [call for call in stack if fnmatchcase(call.path, term)]
