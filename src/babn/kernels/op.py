"""Weibull attention as one operator with gradients, for eager and compiled models.

The upward path comes in one of two forms: as `lift`, the results of its maps for shape and scale
before softplus, side by side for each pair; or as its state with `head_weight` and `head_bias`,
maps over heads that the operator applies itself, and applies once more in backward: their result
is the largest tensor of the layer and costs little.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from babn.kernels.backward import (
    ROWS_OF_A_PART,
    attend_backward_columns,
    attend_backward_queries,
    attend_backward_rows,
)
from babn.kernels.forward import attend_forward
from babn.kernels.heads import lifted_by_heads, lifted_by_heads_backward
from babn.kernels.launch import (
    CONTEXTUAL,
    EULER,
    ROWWISE,
    Launcher,
    Lift,
    Pairs,
    Settings,
    head_sizes,
    tile_options,
    token_by_token,
)

launch_forward = Launcher(attend_forward)
launch_rows = Launcher(attend_backward_rows)
launch_columns = Launcher(attend_backward_columns)
launch_queries = Launcher(attend_backward_queries)

TENSORS = 10
"""How many of the operator's arguments are tensors; the others are settings."""


@torch.library.custom_op("babn::weibull_attention", mutates_args=())
def weibull_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
    head_weight: Tensor | None,
    head_bias: Tensor | None,
    prior: Tensor | None,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output; for each row its divergence, four numbers for backward, and the last key it sees.

    The numbers are the log normalisers of logits, scores and prior, and the smallest k up to 1.
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
    lift = _applied(lift, head_weight, head_bias)
    pairs, lifted = Pairs.of(q, m, mask, bias), Lift.of(lift, q, m)
    sizes = head_sizes(q, v)
    tiles = tile_options("forward", q, m, mask, bias, sizes)
    launch_forward(
        (triton.cdiv(n, tiles["BM"]), batch * heads),
        (q, k, v, lifted.first, lifted.second, q if prior is None else prior,
         pairs.mask, pairs.bias, q if seeds is None else seeds, out, *normalizers, row_end, kl),
        (q.stride(), k.stride(), v.stride(), out.stride(), lifted.strides,
         pairs.mask_strides, pairs.bias_strides,
         heads, heads // k.shape[1], n, m, 1 if seeds is None else batch // len(seeds),
         *settings.numbers(), math.lgamma(alpha) - EULER - 1),
        **sizes, **tiles, **settings.options(prior, mask),
        POSITIVE=head_weight is not None, LIFTS=lifted.kind,
    )  # fmt: skip
    return out, kl, normalizers, row_end


def _applied(
    lift: Tensor | None, head_weight: Tensor | None, head_bias: Tensor | None
) -> Tensor | None:
    """The lift, by maps over heads if there are any."""
    if lift is None or head_weight is None or head_bias is None:
        return lift
    return lifted_by_heads(lift, head_weight, head_bias)


@weibull_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    batch, heads, n, _ = q.shape
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_empty(batch, heads, n, dtype=torch.float32)
    normalizers = q.new_empty(4, batch, heads, n, dtype=torch.float32)
    return out, kl, normalizers, q.new_empty(batch, heads, n, dtype=torch.int32)


@torch.library.custom_op("babn::weibull_attention_backward", mutates_args=())
def weibull_attention_backward(
    dout: Tensor,
    dkl: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
    head_weight: Tensor | None,
    head_bias: Tensor | None,
    prior: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    seeds: Tensor | None,
    out: Tensor,
    normalizers: Tensor,
    row_end: Tensor,
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
    """Gradients of queries, keys, values, lift (or state), prior, maps over heads, and scores.

    Those of scores are empty unless a bias was added to them.
    """
    settings = Settings(
        scale, rho, fixed_k, sigma, beta, alpha, normalized, sample, truncated, own_moment, with_kl
    )
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    state, lift = lift, _applied(lift, head_weight, head_bias)
    dlift = q.new_empty(0)
    if lift is not None:
        # What was computed here a moment ago is not needed again; the kernel writes in its place.
        dlift = torch.empty_like(lift) if head_weight is None else lift
    pairs, lifted = Pairs.of(q, m, mask, bias), Lift.of(lift, q, m)
    dlifted = Lift.of(None if lift is None else dlift, q, m)
    weights, dscores = (q.new_empty(batch, heads, n, m) for _ in range(2))
    row_sum, prior_sum = q.new_empty(2, batch, heads, n, dtype=torch.float32)
    sizes = head_sizes(q, v)
    tiles = tile_options("rows", q, m, mask, bias, sizes)
    options, numbers = settings.options(prior, mask), settings.numbers()
    row_blocks = triton.cdiv(n, tiles["BM"])
    row_parts = row_blocks * tiles["BM"] // ROWS_OF_A_PART.value
    parts = q.new_empty(batch, heads, row_parts, m, dtype=torch.float32)
    prior_or_any = q if prior is None else prior
    dq, balanced = token_by_token(q, n, q.shape[-1]), settings.balanced(prior, mask)
    launch_rows(
        (row_blocks, batch * heads),
        (q, k, v, lifted.first, lifted.second, prior_or_any, pairs.mask, pairs.bias,
         q if seeds is None else seeds, out, *normalizers, row_end, dout, dkl,
         dlifted.first, dlifted.second, weights, dscores, row_sum, prior_sum, parts, dq),
        (q.stride(), k.stride(), v.stride(), out.stride(), dout.stride(), dq.stride(),
         lifted.strides, pairs.mask_strides, pairs.bias_strides,
         heads, groups, n, m, 1 if seeds is None else batch // len(seeds), *numbers),
        **sizes, **tiles, **options, POSITIVE=head_weight is not None, LIFTS=lifted.kind,
        BALANCED=balanced,
    )  # fmt: skip
    finish = normalized and not balanced
    dk, dv = (token_by_token(q, m, x.shape[-1]) for x in (k, v))
    dprior = q.new_empty(batch, heads, m, dtype=torch.float32)
    tiles = tile_options("columns", q, m, mask, bias, sizes)
    launch_columns(
        (triton.cdiv(m, tiles["BN"]), batch * heads),
        (q, k, prior_or_any, pairs.mask, pairs.bias, *normalizers[1:3], row_end, dout,
         weights, dscores, row_sum, prior_sum, dk, dv, dprior),
        (q.stride(), k.stride(), dout.stride(), dk.stride(), dv.stride(), pairs.mask_strides,
         pairs.bias_strides, heads, groups, n, m, numbers[0]),
        **sizes, **tiles, NORMALIZED=finish, PRIORS=options["PRIORS"],
    )  # fmt: skip
    if not balanced:
        tiles = tile_options("queries", q, m, mask, bias, sizes)
        launch_queries(
            (triton.cdiv(n, tiles["BM"]), batch * heads),
            (q, k, pairs.mask, pairs.bias, normalizers[1], row_end, dscores, row_sum, dq),
            (q.stride(), k.stride(), dq.stride(), pairs.mask_strides, pairs.bias_strides,
             heads, groups, n, m, numbers[0]),
            D=sizes["D"], BD=sizes["BD"], **tiles, NORMALIZED=finish,
        )  # fmt: skip
    if options["PRIORS"] == CONTEXTUAL:
        dprior = parts.sum(2)
    elif options["PRIORS"] == ROWWISE:
        dprior = parts.sum(2) - dprior
    if groups > 1:
        dk, dv, dprior = (
            x.unflatten(1, (-1, groups)).sum(2).contiguous() for x in (dk, dv, dprior)
        )
    dmaps = q.new_empty(0)
    dscores = q.new_empty(0) if bias is None else dscores
    del weights, lift  # their room is enough for the gradient of the state
    if state is not None and head_weight is not None:
        dlift, dmaps = lifted_by_heads_backward(state, head_weight, dlift)
    return dq, dk, dv, dlift, dprior, dmaps, dscores


@weibull_attention_backward.register_fake
def _(
    dout: Tensor, dkl: Tensor, q: Tensor, k: Tensor, v: Tensor, lift: Tensor | None,
    head_weight: Tensor | None, head_bias: Tensor | None, prior: Tensor | None,
    mask: Tensor | None, bias: Tensor | None, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    n, m = q.shape[2], k.shape[2]
    dq = token_by_token(q, n, q.shape[-1])
    if k.shape[1] == q.shape[1]:
        dk, dv = (token_by_token(q, m, x.shape[-1]) for x in (k, v))
    else:
        dk, dv = (q.new_empty(x.shape) for x in (k, v))
    dlift = q.new_empty(0) if lift is None else torch.empty_like(lift)
    dprior = q.new_empty(*k.shape[:3], dtype=torch.float32)
    dmaps = q.new_empty(0)
    if head_weight is not None:
        outs, heads = head_weight.shape
        dmaps = q.new_empty(outs, heads + 1, dtype=torch.float32)
    dscores = q.new_empty(0) if bias is None else q.new_empty(*q.shape[:3], m)
    return dq, dk, dv, dlift, dprior, dmaps, dscores


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.settings = inputs[:TENSORS], inputs[TENSORS:]
    out, _, normalizers, row_end = output
    ctx.save_for_backward(*tensors, out, normalizers, row_end)


def _backward(ctx: Any, dout: Tensor, dkl: Tensor, *rest: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # once, as activation checkpointing wants it
    _, _, _, lift, head_weight, head_bias, prior, _, bias, *_ = saved
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv, dlift, dprior, dmaps, dscores = weibull_attention_backward(
        dout, dkl.contiguous(), *saved, *ctx.settings
    )
    return (
        dq,
        dk,
        dv,
        None if lift is None else dlift,
        None if head_weight is None else dmaps[:, :-1].to(head_weight.dtype),
        None if head_bias is None else dmaps[:, -1].to(head_bias.dtype),
        None if prior is None else dprior,
        None,
        None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype),
        *([None] * (1 + len(ctx.settings))),
    )


weibull_attention.register_autograd(_backward, setup_context=_setup)
