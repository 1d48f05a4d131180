"""Weibull attention as one operator with gradients, for eager and compiled models.

The upward path enters in one of two forms: `upward` has shape and scale logits, interleaved; or it
is the upward state, and `head_weight` and `head_bias` are maps over heads that the operator applies
itself. Backward applies them again: their result is the largest tensor of the layer and cheap.

The prior is an MLP over keys, `w1`, `b1`, `w2` and `b2`, or else the number `alpha`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from babn.distributions.kl import EULER
from babn.kernels.forward import attend_forward
from babn.kernels.gradients import Outputs, Saved, gradients, prior_parts
from babn.kernels.heads import logits_over_heads
from babn.kernels.launch import (
    Launcher,
    Pairs,
    compiled_for,
    flags_of,
    numbers_of,
    operator,
    token_by_token,
)
from babn.kernels.prior import network_size, prior_of_keys, prior_of_keys_backward
from babn.kernels.settings import Settings

launch_forward = Launcher(attend_forward)


@operator
def weibull_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    upward: Tensor | None,
    head_weight: Tensor | None,
    head_bias: Tensor | None,
    w1: Tensor | None,
    b1: Tensor | None,
    w2: Tensor | None,
    b2: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output; for each row its KL, four numbers for backward, and the end of the keys it sees.

    The numbers are the log normalisers of logits, scores and prior, and the smallest k up to 1. The
    last result, which has no gradient, is the prior's shapes, if it is an MLP. `numbers` are those
    of `Settings`.
    """
    settings = Settings.of(numbers)
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out, kl, normalizers, row_end = _results(q, v)
    if upward is not None and head_weight is not None and head_bias is not None:
        upward = logits_over_heads(upward, head_weight, head_bias)
    log_alpha = rest = None
    if w1 is not None and b1 is not None and w2 is not None and b2 is not None:
        log_alpha, rest = prior_of_keys(k, w1, b1, w2, b2, mask)
    pairs, logits = Pairs.of(q, m, mask, bias), q if upward is None else upward
    flags, options = compiled_for(
        "forward" if head_weight is None else "forward over heads", q, v, m, mask, bias,
        **flags_of(settings, settings.prior(log_alpha, mask)),
        IS_POSITIVE=head_weight is not None,
        NUM_LOGITS=0 if upward is None else upward.shape[3] // m,
    )  # fmt: skip
    prior_or_any, rest_or_any, seeds_or_any = (
        q if x is None else x for x in (log_alpha, rest, seeds)
    )
    launch_forward(
        (triton.cdiv(n, flags.BLOCK_M) * batch * heads, 1),
        ((q, k, v, logits, prior_or_any, rest_or_any, pairs.mask, pairs.bias,
          seeds_or_any),
         (out, *normalizers, row_end, kl)),
        ((q.stride(), k.stride(), v.stride(), out.stride(), logits.stride(), pairs.mask_strides,
          pairs.bias_strides),
         (heads, heads // k.shape[1], n, m, 1 if seeds is None else batch // len(seeds)),
         (*numbers_of(settings), math.lgamma(settings.alpha) - EULER - 1)),
        C=flags, **options,
    )  # fmt: skip
    return out, kl, normalizers, row_end, q.new_empty(0) if log_alpha is None else log_alpha


def _results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors for the results of each row."""
    rows = q.shape[:3]
    return (
        token_by_token(q, q.shape[2], v.shape[3]),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty(4, *rows, dtype=torch.float32),
        q.new_empty(rows, dtype=torch.int32),
    )


@weibull_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None, head_weight: Tensor | None,
    head_bias: Tensor | None, w1: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    prior = q.new_empty(0) if w1 is None else k.new_empty(k.shape[:3], dtype=torch.float32)
    return *_results(q, v), prior


@operator
def weibull_attention_backward(
    dout: Tensor,
    dkl: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    upward: Tensor | None,
    head_weight: Tensor | None,
    head_bias: Tensor | None,
    w1: Tensor | None,
    b1: Tensor | None,
    w2: Tensor | None,
    b2: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    out: Tensor,
    normalizers: Tensor,
    row_end: Tensor,
    prior: Tensor,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, `upward`, the prior's MLP, maps over heads, and scores.

    Those of the MLP are concatenated, those of weight and bias of the maps side by side, and those
    of scores empty unless they have a bias.
    """
    settings = Settings.of(numbers)
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    dq, dk, dv = (token_by_token(q, x.shape[2], x.shape[3]) for x in (q, k, v))
    log_alpha = None if w1 is None else prior
    dprior = prior_parts(q, v, m, mask, bias, settings.prior(log_alpha, mask))
    dupward = None if upward is None else _like(upward, head_weight)
    dscores = None if bias is None else q.new_empty(batch, heads, n, m)
    maps = None if head_weight is None or head_bias is None else (head_weight, head_bias)
    lse, score_lse, prior_lse, smallest = normalizers
    saved = Saved(
        q, k, v, upward, log_alpha, mask, bias, out, lse, score_lse, prior_lse, smallest,
        row_end, dout, dkl,
    )  # fmt: skip
    dmaps = gradients(saved, Outputs(dq, dk, dv, dupward, dprior, dscores), maps, seeds, settings)
    if groups > 1:
        dk, dv = (x.unflatten(1, (-1, groups)).sum(2).contiguous() for x in (dk, dv))
    dnetwork = None
    if dprior is not None and w1 is not None and b1 is not None and w2 is not None:
        dnetwork = prior_of_keys_backward(k, w1, b1, w2, mask, prior, dprior, dkl, dk)
    dupward, dnetwork, dmaps, dscores = (
        q.new_empty(0) if x is None else x for x in (dupward, dnetwork, dmaps, dscores)
    )
    return dq, dk, dv, dupward, dnetwork, dmaps, dscores


@weibull_attention_backward.register_fake
def _(
    dout: Tensor, dkl: Tensor, q: Tensor, k: Tensor, v: Tensor, upward: Tensor | None,
    head_weight: Tensor | None, head_bias: Tensor | None, w1: Tensor | None, b1: Tensor | None,
    w2: Tensor | None, b2: Tensor | None, mask: Tensor | None, bias: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    n, m = q.shape[2], k.shape[2]
    dq = token_by_token(q, n, q.shape[-1])
    if k.shape[1] == q.shape[1]:
        dk, dv = (token_by_token(q, m, x.shape[-1]) for x in (k, v))
    else:
        dk, dv = (q.new_empty(x.shape) for x in (k, v))
    dupward = q.new_empty(0) if upward is None else _like(upward, head_weight)
    dnetwork, dmaps = q.new_empty(0), q.new_empty(0)
    if w1 is not None:
        dnetwork = q.new_empty(network_size(w1), dtype=torch.float32)
    if upward is not None and head_weight is not None:
        outs, heads = head_weight.shape
        dmaps = q.new_empty(outs, heads + 1, dtype=torch.float32)
    dscores = q.new_empty(0) if bias is None else q.new_empty(*q.shape[:3], m)
    return dq, dk, dv, dupward, dnetwork, dmaps, dscores


def _like(upward: Tensor, head_weight: Tensor | None) -> Tensor:
    """An empty tensor for the gradient of logits, with their strides, or of a state, contiguous."""
    return torch.empty_like(upward) if head_weight is None else upward.new_empty(upward.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.numbers = inputs
    out, _, *others = output
    ctx.save_for_backward(*tensors, out, *others)
    ctx.mark_non_differentiable(*others)


def _backward(ctx: Any, dout: Tensor, dkl: Tensor, *rest: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # once, as activation checkpointing requires
    _, _, _, upward, head_weight, head_bias, *network, _, bias, _, _, _, _, _ = saved
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv, dupward, dnetwork, dmaps, dscores = weibull_attention_backward(
        dout, dkl.contiguous(), *saved, ctx.numbers
    )
    dnetworks = [None] * len(network)
    if network[0] is not None:
        each = dnetwork.split([x.numel() for x in network])
        dnetworks = [dx.view_as(x).to(x.dtype) for dx, x in zip(each, network, strict=True)]
    return (
        dq,
        dk,
        dv,
        None if upward is None else dupward,
        None if head_weight is None else dmaps[:, :-1].to(head_weight.dtype),
        None if head_bias is None else dmaps[:, -1].to(head_bias.dtype),
        *dnetworks,
        None,
        None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype),
        None,
        None,
    )


weibull_attention.register_autograd(_backward, setup_context=_setup)
