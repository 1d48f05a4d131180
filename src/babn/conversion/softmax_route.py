"""Replaces the softmax of model families that compute attention scores themselves."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from babn.attention.inputs import Inputs
from babn.conversion.attend import (
    MASKED_BELOW,
    Undo,
    attend,
    call_original,
    override_forward,
    own_forward,
)
from babn.errors import ConfigError


@dataclass(frozen=True)
class SoftmaxSpec:
    """Names of the parts of an attention module that computes softmax itself.

    Attributes:
        keys: Name of the submodule whose output is the keys, of shape (batch, key, head * dim).
        dropout: Name of the submodule that drops attention weights, or `None`.
    """

    keys: str
    dropout: str | None = "dropout"


SPECS: dict[str, SoftmaxSpec] = {}


def register_family(attention_class: str, spec: SoftmaxSpec) -> None:
    """Makes modules of an attention class convertible.

    The class's forward must call softmax once, over the last axis of scores of shape (batch, head,
    query, key) with masked entries at large negative numbers.

    Args:
        attention_class: Name of the class that calls softmax, e.g. `"MPNetSelfAttention"`.
        spec: Names of its key projection and its dropout.
    """
    SPECS[attention_class] = spec


register_family("MPNetSelfAttention", SoftmaxSpec(keys="k"))
register_family("DisentangledSelfAttention", SoftmaxSpec(keys="key_proj"))


class _Taps(threading.local):
    """The last output of each key projection, until the softmax of its module uses it."""

    def __init__(self) -> None:
        self.keys: dict[nn.Module, Tensor] = {}


_taps = _Taps()


def tap_keys(attention: nn.Module, module: nn.Module, args: Any, output: Tensor) -> None:
    """Keeps the first output of a key projection; later ones are keys of relative positions."""
    _taps.keys.setdefault(attention, output)


class SoftmaxMode(TorchFunctionMode):
    """Computes the softmax in a module's forward with the module's attention method."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replaces softmax; calls other functions unchanged."""
        if func in (F.softmax, torch.softmax, Tensor.softmax) and args[0].ndim == 4:
            return self._weights(args[0])
        return call_original(func, args, kwargs)

    def _weights(self, scores: Tensor) -> Tensor:
        dtype = torch.promote_types(scores.dtype, torch.float32)
        mask = scores > MASKED_BELOW
        phi = scores.to(dtype).masked_fill(~mask, 0.0)
        flat = _taps.keys.pop(self.module)
        key = flat.unflatten(-1, (scores.shape[1], -1)).transpose(1, 2)
        no_values = phi.new_empty(*key.shape[:-1], 0)  # only the weights are needed
        inputs = Inputs(key, key, no_values, 1.0, mask, needs_weights=True, phi=phi)
        _, weights = attend(self.module, "softmax", inputs)
        assert weights is not None
        # Fully masked queries, such as padding in DeBERTa, keep the weights of the model.
        return torch.where(mask.any(-1, keepdim=True), weights.to(scores.dtype), scores.softmax(-1))


def softmax_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's own forward with its softmax replaced."""
    _taps.keys.pop(self, None)  # left by an interrupted call
    with SoftmaxMode(self):
        return own_forward(self)(*args, **kwargs)


def check_spec(module: nn.Module, spec: SoftmaxSpec) -> None:
    """Validates that a module has the submodules that its spec names."""
    name = type(module).__name__
    if not isinstance(getattr(module, spec.keys, None), nn.Module):
        raise ConfigError(
            f"SoftmaxSpec(keys={spec.keys!r}): {name} has no such submodule. It has "
            f"{', '.join(dict(module.named_children()))}; name the one that projects keys."
        )
    if spec.dropout is not None and not hasattr(getattr(module, spec.dropout, None), "p"):
        raise ConfigError(
            f"SoftmaxSpec(dropout={spec.dropout!r}): {name} has no such dropout module. Name it, "
            "or pass dropout=None."
        )


def install_softmax(
    model: nn.Module, drop_dropout: bool, chosen: Callable[[nn.Module], bool]
) -> list[Undo]:
    """Replaces the softmax of the chosen modules of registered classes."""
    known: list[Any] = [m for m in model.modules() if type(m).__name__ in SPECS]
    for module in known:
        check_spec(module, SPECS[type(module).__name__])
    undos: list[Undo] = []
    for module in filter(chosen, known):
        spec = SPECS[type(module).__name__]
        keys = module.get_submodule(spec.keys)
        undos.append(keys.register_forward_hook(partial(tap_keys, module)).remove)
        undos.append(override_forward(module, softmax_forward))
        if drop_dropout and spec.dropout is not None:
            dropout = module.get_submodule(spec.dropout)
            undos.append(partial(setattr, dropout, "p", dropout.p))
            dropout.p = 0.0
    return undos
