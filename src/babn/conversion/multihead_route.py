"""Replaces the forward of `nn.MultiheadAttention`, also in the encoders that bypass it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from babn.conversion.forwards import Undo, override_forward
from babn.conversion.functional_route import multi_head_attention
from babn.conversion.recorder import active_recorder


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
    """`nn.MultiheadAttention.forward` by the method of the module."""
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


def _separate_projections(self: nn.MultiheadAttention) -> dict[str, Any]:
    return {
        "use_separate_proj_weight": True,
        "q_proj_weight": self.q_proj_weight,
        "k_proj_weight": self.k_proj_weight,
        "v_proj_weight": self.v_proj_weight,
    }


def keeps_torch_forward(module: nn.MultiheadAttention) -> bool:
    """Whether neither a subclass nor another tool has replaced the forward."""
    plain: bool = type(module).forward is nn.MultiheadAttention.forward
    return plain and "forward" not in vars(module)


def install_multihead(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> list[Undo]:
    """Replaces the forward of each chosen `nn.MultiheadAttention`, and disables the fast path.

    A forward that is not torch's is left in place; the attention functions that it calls are
    replaced as those of any other module.

    The fast path of `nn.TransformerEncoderLayer` reads weights and never calls its attention
    module; it is not taken when a hook is attached. That of `nn.TransformerEncoder` converts
    batches to nested tensors.
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
    """Writes the zeros that the fast path of `nn.TransformerEncoder` writes at padding."""
    padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
    fast = torch.backends.mha.get_fastpath_enabled() and not torch.is_grad_enabled()
    if padding is None or module.training or not fast or active_recorder() is not None:
        return output
    padding = padding != 0
    if bool((padding[:, :-1] & ~padding[:, 1:]).any()):  # the fast path needs right padding
        return output
    return output.masked_fill(padding.unsqueeze(-1), 0.0)


def _no_fast_path(module: nn.Module, args: Any) -> None:
    """A hook without effect, whose presence disables the fast path."""
