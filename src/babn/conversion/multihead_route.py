"""Attention by `nn.MultiheadAttention`, and the torch encoders that bypass it."""

import inspect
import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from babn.conversion.forwards import Undo, override_forward
from babn.conversion.recorder import recorder
from babn.conversion.sdpa_route import sdpa


def multihead_forward(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention.forward` with the weights of the module's method."""
    moved, crossed = self.batch_first and query.dim() == 3, key is not query
    if moved:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    output, weights = multi_head_attention(
        self,
        query,
        key,
        value,
        self.embed_dim,
        self.num_heads,
        self.in_proj_weight,
        self.in_proj_bias,
        self.bias_k,
        self.bias_v,
        self.add_zero_attn,
        self.dropout,
        self.out_proj.weight,
        self.out_proj.bias,
        training=self.training,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        average_attn_weights=average_attn_weights,
        is_causal=is_causal,
        route="multihead",
        crossed=crossed,
        **({} if self._qkv_same_embed_dim else _separate_projections(self)),
    )
    return output.transpose(0, 1) if moved else output, weights


def multi_head_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    *args: Any,
    route: str = "sdpa",
    crossed: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`F.multi_head_attention_forward` with the weights of the module's method.

    Projections and masks are torch's own code; only its last step, the call of scaled dot product
    attention, is replaced.
    """
    given = dict(zip(_ARGUMENTS, (query, key, *args), strict=False)) | kwargs
    need_weights = given.pop("need_weights", True)
    average = given.pop("average_attn_weights", True)
    if need_weights and given.get("attn_mask") is not None:
        given["is_causal"] = False  # torch reads the mask and not the hint where it makes weights
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
    """The multi-head calls under way in this thread.

    Each has its module, its route, a list for its weights, whether its keys come from another
    sequence, and whether the caller needs the weights.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, str, list[Tensor | None], bool, bool]] = []


_multihead = _Multihead()


def _multihead_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool) -> Tensor:
    module, route, kept, crossed, needs_weights = _multihead.calls[-1]
    output, weights = sdpa(
        module,
        q,
        k,
        v,
        mask,
        p,
        causal,
        route=route,
        crossed=crossed,
        needs_weights=needs_weights,
    )
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
"""Torch's own function with its last step replaced."""

_ARGUMENTS = tuple(inspect.signature(F.multi_head_attention_forward).parameters)


def _separate_projections(self: nn.MultiheadAttention) -> dict[str, Any]:
    return {
        "use_separate_proj_weight": True,
        "q_proj_weight": self.q_proj_weight,
        "k_proj_weight": self.k_proj_weight,
        "v_proj_weight": self.v_proj_weight,
    }


def keeps_torch_forward(module: nn.MultiheadAttention) -> bool:
    """Whether neither a subclass nor another tool has given the module a forward of its own."""
    plain: bool = type(module).forward is nn.MultiheadAttention.forward
    return plain and "forward" not in vars(module)


def install_multihead(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> list[Undo]:
    """Takes over each chosen `nn.MultiheadAttention`, and keeps it off encoders' fused fast path.

    A forward that is not torch's is left in place: what it calls is taken over as that of any other
    module.

    The fast path of `nn.TransformerEncoderLayer` reads weights and never calls its attention
    module; it is not taken when a hook is attached. That of `nn.TransformerEncoder` turns batches
    into nested tensors.
    """
    undos: list[Undo] = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention) and chosen(module):
            if keeps_torch_forward(module):
                undos += override_forward(module, multihead_forward)
            undos.append(module.register_forward_pre_hook(_no_fast_path).remove)
        if isinstance(module, nn.TransformerEncoder) and any(map(chosen, module.modules())):
            if module.use_nested_tensor:
                undos.append(partial(setattr, module, "use_nested_tensor", True))
                undos.append(module.register_forward_hook(_zero_padding, with_kwargs=True).remove)
            module.use_nested_tensor = False
    return undos


def _zero_padding(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
    """Zeros where `nn.TransformerEncoder` would write them: at padding, on its fast path."""
    padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
    fast = torch.backends.mha.get_fastpath_enabled() and not torch.is_grad_enabled()
    if padding is None or module.training or not fast or recorder.calls is not None:
        return output
    padding = padding != 0
    if bool((padding[:, :-1] & ~padding[:, 1:]).any()):  # the fast path takes right padding only
        return output
    return output.masked_fill(padding.unsqueeze(-1), 0.0)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """A hook that does nothing but be there."""
