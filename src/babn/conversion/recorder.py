"""Records the attention calls of a dry run, and the modules that make them."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs
from babn.attention.masking import Mask, normalize
from babn.conversion.plan import Call

RECURRENT = "recurrent_attention"
"""Attribute of modules that attend once for each word of a text: all calls are one step of a chain,
and their KLs are reduced together."""


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
        if scores.mask is None or route == "softmax":  # there the model decides
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


class ModuleStack:
    """The modules whose forward is running, and those whose forward has run."""

    def __init__(self, model: nn.Module) -> None:
        self.stack = [model]
        self.entered: set[nn.Module] = set()

    @contextmanager
    def tracking(self, model: nn.Module) -> Iterator[None]:
        """Tracks the calls of all modules of `model`."""
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(self._enter))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self.stack.append(module)
        self.entered.add(module)

    def _leave(self, *_: Any) -> None:
        self.stack.pop()
