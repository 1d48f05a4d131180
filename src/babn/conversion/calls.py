"""The attention calls of a model: recording, choosing and grouping them into chains."""

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs
from babn.attention.masking import Mask, normalize
from babn.attention.method import ALL, COUNTED, FORMS, NUMBER, ChainShape, MethodConfig, terms_of
from babn.errors import ConfigError
from babn.validation import MOST, shown

RECURRENT = "recurrent_attention"
"""Attribute of modules that attend once for each word of a text. All of their calls are one step of
a chain, and their KLs are reduced together."""


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

    @property
    def shape(self) -> ChainShape:
        """The sizes that the method needs; calls of one module, as in ALBERT, share parameters."""
        paths = list(dict.fromkeys(call.path for call in self.calls))
        sets = [paths.index(call.path) for call in self.calls]
        first = self.calls[0]
        return ChainShape(first.heads, first.head_dim, tuple(sets), first.rowwise)

    def parameters(self, config: MethodConfig) -> int:
        """Number of parameters that the method adds for this chain."""
        with torch.device("meta"):
            return sum(p.numel() for p in config.build(self.shape).parameters())


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
    stacks: dict[str, list[Call]] = {}
    for call in calls:
        stacks.setdefault(call.stack, []).append(call)
    taken: set[int] = set()
    for term in terms_of(layers):
        found = {call.order for stack in stacks.values() for call in _matching(term, stack)}
        if not found:
            known = (f"{name or 'root'} (0 to {len(each) - 1})" for name, each in stacks.items())
            raise ConfigError(
                f"layers={layers!r}: {term!r} matches no attention call. There are "
                f"{', '.join(known)}. Give {FORMS}."
            )
        taken |= found
    chosen = tuple(call for call in calls if call.order in taken)
    return chosen, tuple(call for call in calls if call.order not in taken)


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


@dataclass
class Recorder:
    """Records the attention calls of a run, which are computed by softmax.

    Attributes:
        paths: Path of each module in the model.
        masked_uniform: Whether a query whose keys are all masked attends to all of them equally
            instead of none.
        calls: The recorded calls.
        keys: The keys of each call.
        fully_masked: Whether there was such a query.
    """

    paths: dict[nn.Module, str]
    masked_uniform: bool = False
    calls: list[Call] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    fully_masked: bool = False

    def record(
        self, module: nn.Module, route: str, inputs: Inputs
    ) -> Float[Tensor, "batch head query key"]:
        """Records one call and returns its softmax weights."""
        path, scores = self.paths.get(module, ""), inputs.scores()
        if getattr(module, RECURRENT, False) and any(call.path == path for call in self.calls):
            return normalize(scores.phi, scores.mask)
        phi = scores.phi
        named = re.search(r"cross|encoder_attn|encdec", f"{path} {type(module).__name__}".lower())
        crossed = inputs.crossed or phi.shape[-2] != phi.shape[-1] or named is not None
        self.calls.append(
            Call(
                path=path,
                module=type(module).__name__,
                route=route,
                heads=phi.shape[1],
                head_dim=scores.key.shape[-1],
                queries=phi.shape[-2],
                keys=phi.shape[-1],
                windowed=inputs.windowed,
                crossed=crossed,
                rowwise=_is_rowwise(scores.mask),
                order=len(self.calls),
            )
        )
        self.keys.append(scores.key)
        weights = normalize(phi, scores.mask)
        if scores.mask is None or route == "softmax":  # the model itself decides
            return weights
        hidden = ~scores.mask.any(-1, keepdim=True)
        self.fully_masked |= bool(hidden.any())
        return weights.masked_fill(hidden, 1 / phi.shape[-1]) if self.masked_uniform else weights


def _is_rowwise(mask: Mask | None) -> bool:
    """Whether queries attend to different sets of keys; fully masked queries are ignored."""
    if mask is None:
        return False
    unlike = mask != mask.any(-2, keepdim=True)
    return bool((unlike & mask.any(-1, keepdim=True)).any())


class _Local(threading.local):
    """The recorder of each thread, while it records."""

    recorder: Recorder | None = None


_local = _Local()


def active_recorder() -> Recorder | None:
    """The recorder of this thread, if it records."""
    return _local.recorder


@contextmanager
def recording(model: nn.Module, masked_uniform: bool = False) -> Iterator[Recorder]:
    """Records the attention calls of `model` instead of applying a method."""
    paths = {module: path for path, module in model.named_modules()}
    _local.recorder = Recorder(paths, masked_uniform)
    try:
        yield _local.recorder
    finally:
        _local.recorder = None
