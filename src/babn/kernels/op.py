"""Weibull attention as one operator with gradients, for eager and compiled models.

The upward path comes in one of two forms: as `lift`, the results of its maps for shape and scale
before softplus, side by side for each pair; or as its state with `head_weight` and `head_bias`,
maps over heads that the operator applies itself. Unless their result is small, it applies them once
more in backward: it is the largest tensor of the layer and costs little.

The prior comes as its network over keys, `w1`, `b1`, `w2` and `b2`, which the operator reads them
with; without one it is the number `alpha`.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from babn.kernels import limits
from babn.kernels.forward import attend_forward
from babn.kernels.gradients import (
    Maps,
    Room,
    Saved,
    gradients,
    map_parts,
    part_size,
    room_for_prior,
)
from babn.kernels.heads import lifted_by_heads
from babn.kernels.launch import (
    EULER,
    Launcher,
    Lift,
    Pairs,
    Settings,
    head_sizes,
    operator,
    tile_options,
    token_by_token,
)
from babn.kernels.prior import network_parts, prior_of_keys, prior_of_keys_backward

launch_forward = Launcher(attend_forward)

TENSORS = 13
"""How many of the operator's arguments are tensors; the others are settings."""


@operator
def weibull_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
    head_weight: Tensor | None,
    head_bias: Tensor | None,
    w1: Tensor | None,
    b1: Tensor | None,
    w2: Tensor | None,
    b2: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    scale: float,
    rho: float,
    fixed_k: float,
    sigma: float,
    beta: float,
    alpha: float,
    normalized: bool,
    sample: bool,
    truncated: bool,
    own_moment: bool,
    with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output; for each row its divergence, four numbers for backward, and the last key it sees.

    The numbers are the log normalisers of logits, scores and prior, and the smallest k up to 1.
    Last come the result of maps over heads, if it is kept, and the prior's shapes, if it has a
    network; they have no gradients of their own.
    """
    settings = Settings(
        scale, rho, fixed_k, sigma, beta, alpha, normalized, sample, truncated, own_moment, with_kl
    )
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_empty(batch, heads, n, dtype=torch.float32)
    normalizers = q.new_empty(4, batch, heads, n, dtype=torch.float32)
    row_end = q.new_empty(batch, heads, n, dtype=torch.int32)
    kept = q.new_empty(0)
    if lift is not None and head_weight is not None and head_bias is not None:
        size, lift = kept_size(lift, head_weight), lifted_by_heads(lift, head_weight, head_bias)
        kept = lift if size else kept
    prior = rest = None
    if w1 is not None and b1 is not None and w2 is not None and b2 is not None:
        prior, rest = prior_of_keys(k, w1, b1, w2, b2, mask)
    pairs, lifted = Pairs.of(q, m, mask, bias), Lift.of(lift, q, m)
    sizes = head_sizes(q, v)
    kernel = "forward" if head_weight is None else "forward over heads"
    tiles = tile_options(kernel, q, m, mask, bias, sizes)
    prior_or_any, rest_or_any, seeds_or_any = (q if x is None else x for x in (prior, rest, seeds))
    launch_forward(
        (triton.cdiv(n, tiles["BM"]), batch * heads),
        (q, k, v, lifted.first, lifted.second, prior_or_any, rest_or_any,
         pairs.mask, pairs.bias, seeds_or_any, out, *normalizers, row_end, kl),
        (q.stride(), k.stride(), v.stride(), out.stride(), lifted.strides,
         pairs.mask_strides, pairs.bias_strides,
         heads, heads // k.shape[1], n, m, 1 if seeds is None else batch // len(seeds),
         *settings.numbers(), math.lgamma(alpha) - EULER - 1),
        **sizes, **tiles, **settings.options(prior, mask),
        POSITIVE=head_weight is not None, LIFTS=lifted.kind,
    )  # fmt: skip
    return out, kl, normalizers, row_end, kept, q.new_empty(0) if prior is None else prior


def kept_size(state: Tensor, head_weight: Tensor) -> tuple[int, ...]:
    """The size of what maps over heads make of a state, if it is kept; empty otherwise."""
    batch, heads, n, m = state.shape
    size = batch, heads, n, head_weight.shape[0] // heads * m
    return size if math.prod(size) * state.element_size() <= limits.KEPT else ()


@weibull_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, lift: Tensor | None, head_weight: Tensor | None,
    head_bias: Tensor | None, w1: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    batch, heads, n, _ = q.shape
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_empty(batch, heads, n, dtype=torch.float32)
    normalizers = q.new_empty(4, batch, heads, n, dtype=torch.float32)
    row_end = q.new_empty(batch, heads, n, dtype=torch.int32)
    kept = q.new_empty(0)
    if lift is not None and head_weight is not None:
        kept = lift.new_empty(kept_size(lift, head_weight) or 0)
    prior = q.new_empty(0)
    if w1 is not None:
        prior = k.new_empty(k.shape[:3], dtype=torch.float32)
    return out, kl, normalizers, row_end, kept, prior


@operator
def weibull_attention_backward(
    dout: Tensor,
    dkl: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
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
    lifted: Tensor,
    prior: Tensor,
    scale: float,
    rho: float,
    fixed_k: float,
    sigma: float,
    beta: float,
    alpha: float,
    normalized: bool,
    sample: bool,
    truncated: bool,
    own_moment: bool,
    with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, lift (or state), both kinds of maps, and scores.

    Those of the prior's network and of maps over heads come in parts, and those of scores are empty
    unless a bias was added to them.
    """
    settings = Settings(
        scale, rho, fixed_k, sigma, beta, alpha, normalized, sample, truncated, own_moment, with_kl
    )
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    dq, dk, dv = (token_by_token(q, x.shape[2], x.shape[3]) for x in (q, k, v))
    log_alpha = None if w1 is None else prior
    dprior = room_for_prior(q, v, m, (mask, bias), settings.priors(log_alpha, mask))
    dlift = None if lift is None else _like(lift, head_weight)
    dscores = None if bias is None else q.new_empty(batch, heads, n, m)
    maps = None if head_weight is None or head_bias is None else Maps(head_weight, head_bias)
    lse, score_lse, prior_lse, smallest = normalizers
    saved = Saved(
        q, k, v, lift, lifted, log_alpha, mask, bias, out, lse, score_lse, prior_lse, smallest,
        row_end, dout, dkl,
    )  # fmt: skip
    dmaps = gradients(saved, Room(dq, dk, dv, dlift, dprior, dscores), maps, seeds, settings)
    if groups > 1:
        dk, dv = (x.unflatten(1, (-1, groups)).sum(2).contiguous() for x in (dk, dv))
    dnetwork = None
    if dprior is not None and w1 is not None and b1 is not None and w2 is not None:
        dnetwork = prior_of_keys_backward(k, w1, b1, w2, mask, prior, dprior, dkl, dk)
    dlift, dnetwork, dmaps, dscores = (
        q.new_empty(0) if x is None else x for x in (dlift, dnetwork, dmaps, dscores)
    )
    return dq, dk, dv, dlift, dnetwork, dmaps, dscores


@weibull_attention_backward.register_fake
def _(
    dout: Tensor, dkl: Tensor, q: Tensor, k: Tensor, v: Tensor, lift: Tensor | None,
    head_weight: Tensor | None, head_bias: Tensor | None, w1: Tensor | None, b1: Tensor | None,
    w2: Tensor | None, b2: Tensor | None, mask: Tensor | None, bias: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    n, m = q.shape[2], k.shape[2]
    dq = token_by_token(q, n, q.shape[-1])
    if k.shape[1] == q.shape[1]:
        dk, dv = (token_by_token(q, m, x.shape[-1]) for x in (k, v))
    else:
        dk, dv = (q.new_empty(x.shape) for x in (k, v))
    dlift = q.new_empty(0) if lift is None else _like(lift, head_weight)
    dnetwork, dmaps = q.new_empty(0), q.new_empty(0)
    if w1 is not None:
        dnetwork = q.new_empty(network_parts(k, w1), dtype=torch.float32)
    if lift is not None and head_weight is not None:
        outs, heads = head_weight.shape
        parts = map_parts(lift, part_size(q, m, head_weight))
        dmaps = q.new_empty(parts, outs, heads + 1, dtype=torch.float32)
    dscores = q.new_empty(0) if bias is None else q.new_empty(*q.shape[:3], m)
    return dq, dk, dv, dlift, dnetwork, dmaps, dscores


def _like(lift: Tensor, head_weight: Tensor | None) -> Tensor:
    """Room for the gradient of a lift, as it lies, or of a state, whose heads lie apart."""
    return torch.empty_like(lift) if head_weight is None else lift.new_empty(lift.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.settings = inputs[:TENSORS], inputs[TENSORS:]
    out, _, *others = output
    ctx.save_for_backward(*tensors, out, *others)
    ctx.mark_non_differentiable(*others)


def _backward(ctx: Any, dout: Tensor, dkl: Tensor, *rest: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # once, as activation checkpointing wants it
    _, _, _, lift, head_weight, head_bias, *network, _, bias, _, _, _, _, _, _ = saved
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv, dlift, dnetwork, dmaps, dscores = weibull_attention_backward(
        dout, dkl.contiguous(), *saved, *ctx.settings
    )
    # Parts are added up here, where compilers see it and make one kernel of it.
    if head_weight is not None:
        dmaps = dmaps.sum(0)
    dnetworks = [None] * len(network)
    if network[0] is not None:
        each = dnetwork.sum(0).split([x.numel() for x in network])
        dnetworks = [dx.view_as(x).to(x.dtype) for dx, x in zip(each, network, strict=True)]
    return (
        dq,
        dk,
        dv,
        None if lift is None else dlift,
        None if head_weight is None else dmaps[:, :-1].to(head_weight.dtype),
        None if head_bias is None else dmaps[:, -1].to(head_bias.dtype),
        *dnetworks,
        None,
        None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype),
        *([None] * (1 + len(ctx.settings))),
    )


weibull_attention.register_autograd(_backward, setup_context=_setup)
