"""Weibull attention as one operation with gradients, for eager and compiled models.

The upward path enters in one of two forms: `upward` has shape and scale logits, interleaved; or it
is the upward state, and `maps` are maps over heads that the operator applies itself. Backward
applies them again: their result is the largest tensor of the layer and cheap.

The prior is an MLP over keys, `network`, or else the number `alpha`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from babn.distributions.kl import EULER
from babn.kernels.forward import attend_forward
from babn.kernels.gradients import ROW_NUMBERS, pair_attention_backward
from babn.kernels.heads import logits_over_heads
from babn.kernels.launch import (
    Launcher,
    Method,
    Operator,
    broadcast,
    ceil_div,
    compiled_for,
    numbers_of,
    token_by_token,
)
from babn.kernels.prior import prior_of_keys
from babn.kernels.settings import settings_of

launch_forward = Launcher(attend_forward)


@Operator
def pair_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    upward: Tensor | None,
    maps: Tensor | None,
    network: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, the KL of each row, and what backward needs, as `parts_of_stats` lists it.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        upward: Shape and scale logits, or the upward state.
        maps: Maps over heads, one below the other, with the bias as the last column.
        network: Weight and bias of the two layers of the prior's MLP, concatenated; for a KL.
        mask: The pairs that take part.
        bias: Added to the scores.
        seeds: One for each block of the batch.
        numbers: Those of `Settings`.
    """
    settings = settings_of(tuple(numbers))
    batch, heads, n, _ = q.shape
    key_heads, m = k.shape[1], k.shape[2]
    out, kl, stats = _results(q, k, v, network)
    row_count, prior_count = kl.numel(), batch * key_heads * m
    if upward is not None and maps is not None:
        upward = logits_over_heads(upward, maps)
    if network is not None:
        prior_of_keys(k, network, mask, stats, ROW_NUMBERS * row_count)
    count = 0 if upward is None else upward.shape[3] // m
    flags, options = compiled_for(
        "forward" if maps is None else "forward over heads", q, v, m, mask, bias,
        Method(settings, network is not None, count, maps is not None),
    )  # fmt: skip
    logits = q if upward is None else upward
    seen, mask_strides = broadcast(mask, q)
    added, bias_strides = broadcast(bias, q)
    launch_forward(
        (ceil_div(n, flags.BLOCK_M) * batch * heads, 1),
        ((q, k, v, logits, seen, added, q if seeds is None else seeds), (out, stats, kl)),
        ((q.stride(), k.stride(), v.stride(), out.stride(), logits.stride(), mask_strides,
          bias_strides),
         (heads, heads // key_heads, n, m, row_count, prior_count,
          1 if seeds is None else batch // len(seeds)),
         (*numbers_of(settings), math.lgamma(settings.alpha) - EULER - 1)),
        options,
    )  # fmt: skip
    return out, kl, stats


def _results(
    q: Tensor, k: Tensor, v: Tensor, network: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the results."""
    batch, heads, n, _ = q.shape
    prior = 0 if network is None else batch * k.shape[1] * (k.shape[2] + 1)
    return (
        token_by_token(q, n, v.shape[3]),
        q.new_empty((batch, heads, n), dtype=torch.float32),
        q.new_empty(ROW_NUMBERS * batch * heads * n + prior, dtype=torch.float32),
    )


@pair_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None, maps: Tensor | None,
    network: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _results(q, k, v, network)


class WeibullAttention(torch.autograd.Function):
    """Output of a call and the KL of its rows, from the arguments of `weibull_attention`."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None, maps: Tensor | None,
        offset: Tensor | None, *rest: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attends, and keeps what backward needs."""
        state = None
        if offset is not None and upward is not None and maps is not None:
            state, upward = upward, F.linear(upward, maps, offset)
        over_heads = maps if state is None else None
        *others, ctx.numbers = rest
        out, kl, stats = pair_attention(q, k, v, upward, over_heads, *rest)
        ctx.save_for_backward(q, k, v, upward, maps, *others, out, stats, state)
        return out, kl

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dkl: Tensor) -> tuple[Any, ...]:
        """Gradients of all tensors but mask and seeds."""
        *saved, state = ctx.saved_tensors  # once, as activation checkpointing requires
        q, k, v, upward, maps, network, mask, bias, *rest = saved
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        over_heads = maps if state is None else None
        dq, dk, dv, *found = pair_attention_backward(
            dout, dkl, q, k, v, upward, over_heads, network, mask, bias, *rest, ctx.numbers
        )
        dupward = dmaps = doffset = dnetwork = dbias = None
        if upward is not None:
            dupward = found.pop(0)
        if over_heads is not None:
            dmaps = found.pop(0).to(over_heads.dtype)
        if network is not None:
            dnetwork = found.pop(0).to(network.dtype)
        if bias is not None:
            dbias = found.pop(0).sum_to_size(bias.shape).to(bias.dtype)
        if state is not None and dupward is not None:
            rows = dupward.flatten(0, 2)
            dupward, dmaps, doffset = (
                dupward @ maps, rows.t() @ state.flatten(0, 2), rows.sum(0)
            )  # fmt: skip
        return dq, dk, dv, dupward, dmaps, doffset, dnetwork, None, dbias, None, None


def weibull_attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Output and KL of the rows, with gradients.

    Takes the arguments of `pair_attention`, with one more behind `maps`: unless it is `None`, these
    are maps over keys from the state to the logits, and it is their bias.
    """
    found: tuple[Tensor, Tensor] = WeibullAttention.apply(*arguments)
    return found
