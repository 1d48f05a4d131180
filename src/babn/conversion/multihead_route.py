"""Attention by `nn.MultiheadAttention`, and the torch encoders that bypass it."""

import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from babn.conversion.forwards import Undo, override_forward
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
    """`nn.MultiheadAttention.forward` with the rule's weights in place of softmax.

    Projections and masks are torch's own code; only its last step, the call of scaled dot product
    attention, is replaced.
    """
    batched, crossed = query.dim() == 3, key is not query
    if self.batch_first and batched:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    kept: list[Tensor | None] = []
    _multihead.calls.append((self, kept, crossed, need_weights))
    try:
        output = _project_and_attend(
            self, query, key, value, key_padding_mask, attn_mask, is_causal
        )
    finally:
        _multihead.calls.pop()
    if self.batch_first and batched:
        output = output.transpose(0, 1)
    weights = kept[0]
    if not need_weights or weights is None:
        return output, None
    weights = weights.mean(1) if average_attn_weights else weights
    return output, weights if batched else weights.squeeze(0)


class _Multihead(threading.local):
    """The multi-head modules at work in this thread.

    Each with a list for its weights, whether its keys come from another sequence, and whether the
    weights are wanted.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[nn.MultiheadAttention, list[Tensor | None], bool, bool]] = []


_multihead = _Multihead()


def _multihead_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool) -> Tensor:
    module, kept, crossed, needs_weights = _multihead.calls[-1]
    output, weights = sdpa(
        module,
        q,
        k,
        v,
        mask,
        p,
        causal,
        route="multihead",
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


def _project_and_attend(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    separate = {} if self._qkv_same_embed_dim else _separate_projections(self)
    return _multi_head_attention_forward(
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
        need_weights=False,
        attn_mask=attn_mask,
        is_causal=is_causal,
        **separate,
    )[0]


def _separate_projections(self: nn.MultiheadAttention) -> dict[str, Any]:
    return {
        "use_separate_proj_weight": True,
        "q_proj_weight": self.q_proj_weight,
        "k_proj_weight": self.k_proj_weight,
        "v_proj_weight": self.v_proj_weight,
    }


def install_multihead(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> list[Undo]:
    """Takes over each chosen `nn.MultiheadAttention`, and keeps it off encoders' fused fast path.

    The fast path of `nn.TransformerEncoderLayer` reads weights and never calls its attention
    module; it is not taken when a hook is attached. That of `nn.TransformerEncoder` turns batches
    into nested tensors.
    """
    undos: list[Undo] = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention) and chosen(module):
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
    if padding is None or module.training or not fast:
        return output
    padding = padding != 0
    if bool((padding[:, :-1] & ~padding[:, 1:]).any()):  # the fast path takes right padding only
        return output
    return output.masked_fill(padding.unsqueeze(-1), 0.0)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """A hook that does nothing but be there."""
