"""Replaces torch's attention: calls of its functions, and `nn.MultiheadAttention`."""

import inspect
import math
import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from babn.attention.inputs import Inputs
from babn.conversion.attend import (
    Undo,
    attend,
    call_original,
    override_forward,
    own_forward,
    read_mask,
)
from babn.errors import UnsupportedAttentionError


class FunctionalMode(TorchFunctionMode):
    """Computes torch's attention functions with the method of the calling module.

    Args:
        modules: The modules whose forward is running, the innermost last.
        route: How their calls are intercepted.
        crossed: Whether multi-head calls are cross-attention; by default inferred from each call.
    """

    def __init__(
        self, modules: list[nn.Module], route: str = "sdpa", crossed: bool | None = None
    ) -> None:
        super().__init__()
        self.modules, self.route, self.crossed = modules, route, crossed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replaces attention functions; calls others unchanged."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.modules[-1], *args, **(kwargs or {}))[0]
        if func is F.multi_head_attention_forward:
            settings = {**(kwargs or {}), "route": self.route, "crossed": self.crossed}
            return multi_head_attention(self.modules[-1], *args, **settings)
        return call_original(func, args, kwargs)


def functional_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's own forward with its attention functions replaced."""
    with FunctionalMode([self]):
        return own_forward(self)(*args, **kwargs)


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
    """`F.scaled_dot_product_attention` with the method of `module`: output and weights."""
    if query.is_nested:
        raise UnsupportedAttentionError("Nested tensors are not supported: pass padded tensors.")
    query4, key4, value4 = (_four_dimensional(x, enable_gqa) for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = _mask_four_dimensional(attn_mask, query.shape, enable_gqa)
    mask, bias = read_mask(attn_mask, query, key)
    inputs = Inputs(
        query4,
        key4,
        value4,
        scale=scale if scale is not None else 1 / math.sqrt(query.shape[-1]),
        mask=mask,
        bias=bias,
        causal=is_causal,
        dropout=dropout_p,
        crossed=crossed,
        needs_weights=needs_weights,
    )
    output, weights = attend(module, route, inputs)
    shape = (*query.shape[:-1], value.shape[-1])
    return output.transpose(1, 2).reshape(shape), weights


def _four_dimensional(x: Tensor, headed: bool) -> Tensor:
    """Reshapes to (batch, head, position, size): adds missing axes and merges batch axes."""
    if x.ndim <= 3:
        return x[None, None] if x.ndim == 2 else x.unsqueeze(0 if headed else 1)
    return x.flatten(0, -4)


def _mask_four_dimensional(mask: Tensor, query: torch.Size, headed: bool) -> Tensor:
    """The mask with the axes that `_four_dimensional` adds to queries."""
    if len(query) > 4 and mask.ndim > 3:
        return mask.expand(*query[:-3], *mask.shape[-3:]).flatten(0, -4)
    if len(query) == 3 and mask.ndim == 3:
        return mask.unsqueeze(0 if headed else 1)
    return mask


def multi_head_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    *args: Any,
    route: str = "sdpa",
    crossed: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`F.multi_head_attention_forward` with the method of `module`.

    Projections and masks are torch's own code; only the call of scaled dot product attention is
    replaced.
    """
    given = dict(zip(_ARGUMENTS, (query, key, *args), strict=False)) | kwargs
    need_weights = given.pop("need_weights", True)
    average = given.pop("average_attn_weights", True)
    if need_weights and given.get("attn_mask") is not None:
        given["is_causal"] = False  # torch uses the mask, not the hint, if it returns weights
    kept: list[Tensor | None] = []
    crossed = key is not query if crossed is None else crossed
    _multihead.calls.append((module, route, kept, crossed, need_weights))
    try:
        output = _multi_head_attention_forward(**given, need_weights=False)[0]
    finally:
        _multihead.calls.pop()
    weights = kept[0]
    if not need_weights or weights is None:
        return output, None
    weights = weights.mean(1) if average else weights
    return output, weights if query.dim() == 3 else weights.squeeze(0)


class _Multihead(threading.local):
    """The multi-head calls in progress in this thread, the innermost last.

    Each entry holds the module, the route, a list for the weights, whether it is cross-attention,
    and whether the caller needs the weights.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, str, list[Tensor | None], bool, bool]] = []


_multihead = _Multihead()


def _multihead_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool) -> Tensor:
    module, route, kept, crossed, needs_weights = _multihead.calls[-1]
    more: dict[str, Any] = {"crossed": crossed, "needs_weights": needs_weights}
    output, weights = sdpa(module, q, k, v, mask, p, causal, route=route, **more)
    kept.append(weights)
    return output


_multi_head_attention_forward = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {
        **F.multi_head_attention_forward.__globals__,
        "scaled_dot_product_attention": _multihead_sdpa,
        "has_torch_function": lambda _: False,
        "_check_key_padding_mask": lambda *_: None,  # torch.compile cannot trace its messages
    },
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""Torch's own function with the call of scaled dot product attention replaced."""

_ARGUMENTS = tuple(inspect.signature(F.multi_head_attention_forward).parameters)


def multihead_forward(
    self: nn.MultiheadAttention, query: Tensor, key: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward` with the method of the module."""
    with FunctionalMode([self], "multihead", crossed=key is not query):
        output: tuple[Tensor, Tensor | None] = own_forward(self)(query, key, *args, **kwargs)
    return output


def install_multihead(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> list[Undo]:
    """Replaces the forward of each chosen `nn.MultiheadAttention`, and disables the fast path.

    A forward that a subclass or another tool has replaced stays in place; the attention functions
    that it calls are replaced as in any other module.

    The fast path of `nn.TransformerEncoderLayer` reads weights without calling its attention
    module; torch does not take it if a hook is attached. The fast path of `nn.TransformerEncoder`
    converts batches to nested tensors.
    """
    undos: list[Undo] = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention) and chosen(module):
            inherited = type(module).forward is nn.MultiheadAttention.forward
            if inherited and "forward" not in vars(module):
                undos.append(override_forward(module, multihead_forward))
            undos.append(module.register_forward_pre_hook(_no_fast_path).remove)
        if isinstance(module, nn.TransformerEncoder) and any(map(chosen, module.modules())):
            if module.use_nested_tensor:
                undos.append(partial(setattr, module, "use_nested_tensor", True))
            module.use_nested_tensor = False
    return undos


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """A hook that does nothing; its presence disables the fast path."""
