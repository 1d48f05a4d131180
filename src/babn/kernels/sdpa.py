r"""Attention by torch's `scaled_dot_product_attention`: plain, or with one factor per key.

With factors $E_j$ the weights are $W_{ij} \propto e^{\Phi_{ij}} E_j$. Two forms give the same
output. `best_form` chooses between them, and nothing else depends on the choice;
`tools/key_forms.py` compares them with others.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Inputs, repeat_heads
from babn.attention.masking import is_rowwise

Form = Literal["bias", "wide"]

LogFactors = Float[Tensor, "batch head 1 key"]

WIDE_FROM = 1024
"""Number of keys from which extra columns are used: flash attention takes no bias."""

ALIGNED = 8
"""Head sizes are padded to a multiple of this, as kernels for half precision need it."""


def takes_softmax(inputs: Inputs) -> bool:
    """Whether torch's attention supports a call: no softcap, and a mask or a bias but not both."""
    masked = inputs.causal or inputs.mask is not None
    return inputs.softcap is None and not (masked and inputs.bias is not None)


def softmax_attention(inputs: Inputs, dropout: float = 0.0) -> Tensor:
    """The output of softmax attention, by torch's `scaled_dot_product_attention`."""
    if inputs.mask is not None:
        inputs = inputs.with_causal_mask()
    if not takes_softmax(inputs):
        inputs = inputs.with_bias(inputs.query.new_zeros(1, 1, 1, 1))
    mask = inputs.mask if inputs.bias is None else inputs.bias.to(inputs.query.dtype)
    settings: dict[str, Any] = {"is_causal": inputs.causal, "scale": inputs.scale}
    if inputs.query.shape[1] != inputs.key.shape[1]:
        settings["enable_gqa"] = True
    return F.scaled_dot_product_attention(
        inputs.query, inputs.key, inputs.value, mask, dropout, **settings
    )


def best_form(inputs: Inputs, log_e: LogFactors) -> Form:
    """The fastest form for a call.

    The gradient of a bias, and a bias beside causality or a mask of pairs, are tensors over all
    pairs of queries and keys. Flash attention on a CPU takes a bias, but not one with a gradient.
    """
    by_pair = inputs.causal or inputs.bias is not None or is_rowwise(inputs.mask)
    slow = log_e.requires_grad and not inputs.query.is_cuda
    several = inputs.pairs[-2] > 1
    return "wide" if several and (by_pair or slow or inputs.pairs[-1] >= WIDE_FROM) else "bias"


def attention_with_factors(
    inputs: Inputs, log_e: LogFactors, dropout: float = 0.0, form: Form | None = None
) -> Float[Tensor, "batch head query dim"]:
    """The output of a call whose keys have factors.

    Args:
        inputs: The call, without softcap.
        log_e: Logarithms of the factors.
        dropout: Probability with which weights are dropped.
        form: How to compute it; by default the fastest way.
    """
    return FORMS[form or best_form(inputs, log_e)](inputs, log_e, dropout)


def by_bias(inputs: Inputs, log_e: LogFactors, dropout: float) -> Tensor:
    """Adds the log factors to the scores.

    The queries of a group that have one position are treated as positions, so that keys and values
    are not repeated. With several positions they are, since kernels with a bias need it.
    """
    biased = inputs.with_bias(log_e)
    query, key = inputs.query, inputs.key
    heads, key_heads = query.shape[1], key.shape[1]
    if heads == key_heads:
        return softmax_attention(biased, dropout)
    if inputs.pairs[-2] > 1:
        key, value = (repeat_heads(x, heads) for x in (key, inputs.value))
        return softmax_attention(replace(biased, key=key, value=value), dropout)
    groups = (key_heads, heads // key_heads)
    assert biased.bias is not None
    bias = biased.bias.expand(-1, heads, -1, -1).squeeze(2).unflatten(1, groups)
    folded = replace(biased, query=query.squeeze(2).unflatten(1, groups), bias=bias)
    return softmax_attention(folded, dropout).flatten(1, 2).unsqueeze(2)


def by_columns(inputs: Inputs, log_e: LogFactors, dropout: float) -> Tensor:
    """Adds columns to queries and keys, and to values zeros, since flash attention needs them."""
    wide = with_columns(inputs, log_e)
    size = inputs.value.shape[-1]
    value = F.pad(inputs.value, (0, max(wide.key.shape[-1] - size, 0)))
    return softmax_attention(replace(wide, value=value), dropout)[..., :size]


def with_columns(inputs: Inputs, log_e: LogFactors) -> Inputs:
    """A call with columns in queries and keys whose products are the log factors.

    A head reads its own column of the keys, which the queries of a group share. The part of a log
    factor that half precision rounds off has a second column.
    """
    query, key = inputs.query, inputs.key
    heads, key_heads, keys = query.shape[1], key.shape[1], key.shape[2]
    groups = heads // key_heads
    bias = (log_e / inputs.scale).expand(key.shape[0], heads, 1, keys)
    parts = [bias.to(key.dtype)]
    if key.dtype != log_e.dtype:
        parts.append((bias - parts[0]).to(key.dtype))
    width = groups * len(parts)
    columns = torch.cat(parts, 2).view(key.shape[0], key_heads, width, keys).transpose(2, 3)
    padding = -(key.shape[-1] + width) % ALIGNED
    chosen = torch.eye(groups, dtype=query.dtype, device=query.device)
    chosen = F.pad(chosen.repeat_interleave(len(parts), 1), (0, padding))
    chosen = chosen.repeat(key_heads, 1)[:, None].expand(*query.shape[:3], -1)
    query = torch.cat([query, chosen], -1)
    key = torch.cat([key, F.pad(columns, (0, padding))], -1)
    return replace(inputs, query=query, key=key)


FORMS: dict[Form, Callable[[Inputs, LogFactors, float], Tensor]] = {
    "bias": by_bias,
    "wide": by_columns,
}
