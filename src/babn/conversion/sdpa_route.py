"""`F.scaled_dot_product_attention` with the weights of a module's method."""

import math

import torch
from torch import Tensor, nn

from babn.attention.inputs import Inputs
from babn.conversion.attend import attend, read_mask
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
