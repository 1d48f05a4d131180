"""Attention by `F.scaled_dot_product_attention`, wherever it is called."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from babn.attention.inputs import Inputs
from babn.conversion.attend import attend, read_mask
from babn.conversion.forwards import Undo, call_original, override_forward, own_forward
from babn.errors import UnsupportedAttentionError


def sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    route: str = "sdpa",
    crossed: bool = False,
    needs_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`F.scaled_dot_product_attention` by the rule of `module`: output and weights."""
    if query.is_nested:
        raise UnsupportedAttentionError("Nested tensors are not supported: pass padded tensors.")
    query4, key4, value4 = (_four_dimensional(x, enable_gqa) for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = _mask_four_dimensional(attn_mask, query.shape, enable_gqa)
    mask, bias = read_mask(attn_mask, query, key, is_causal)
    inputs = Inputs(
        query4,
        key4,
        value4,
        scale=scale if scale is not None else 1 / math.sqrt(query.shape[-1]),
        mask=mask,
        bias=bias,
        dropout=dropout_p,
        crossed=crossed,
        needs_weights=needs_weights,
    )
    output, weights = attend(module, route, inputs)
    shape = (*query.shape[:-1], value.shape[-1])
    return output.reshape(shape), weights


def _four_dimensional(x: Tensor, headed: bool) -> Tensor:
    """Batch, head, position, size: missing axes are added, further batch axes are merged."""
    if x.ndim <= 3:
        return x[None, None] if x.ndim == 2 else x.unsqueeze(0 if headed else 1)
    return x.flatten(0, -4)


def _mask_four_dimensional(mask: Tensor, query: torch.Size, headed: bool) -> Tensor:
    """The mask with the axes that `_four_dimensional` gives to queries."""
    if len(query) > 4 and mask.ndim > 3:
        return mask.expand(*query[:-3], *mask.shape[-3:]).flatten(0, -4)
    if len(query) == 3 and mask.ndim == 3:
        return mask.unsqueeze(0 if headed else 1)
    return mask


class SdpaMode(TorchFunctionMode):
    """Sends the `F.scaled_dot_product_attention` calls of one module's forward to its rule."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Takes over scaled dot product attention and nothing else."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.module, *args, **(kwargs or {}))[0]
        return call_original(func, args, kwargs)


def sdpa_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's own forward with its attention calls taken over."""
    with SdpaMode(self):
        return own_forward(self)(*args, **kwargs)


def install_sdpa(module: nn.Module) -> list[Undo]:
    """Takes over the `F.scaled_dot_product_attention` calls that a module makes itself."""
    return override_forward(module, sdpa_forward)


class ModuleStack:
    """Knows, during a forward pass, which module is at work."""

    def __init__(self, model: nn.Module) -> None:
        self.stack = [model]

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Follows the calls of all modules of `model`."""
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(lambda m, _: self.stack.append(m)))
            handles.append(
                module.register_forward_hook(lambda *_: self.stack.pop() and None, always_call=True)
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class DiscoverSdpa(TorchFunctionMode):
    """During the dry run, notes which module makes which call."""

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()
        self.modules = stack.stack

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Records scaled dot product attention under the module at work."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.modules[-1], *args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))
