"""Weibull attention as one operator with gradients, for eager and compiled models."""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from babn.kernels.backward import attend_backward_columns, attend_backward_rows
from babn.kernels.forward import attend_forward
from babn.kernels.heads import head_map, head_map_backward
from babn.kernels.launch import (
    CONTEXTUAL,
    EULER,
    ROWWISE,
    Lift,
    Pairs,
    Settings,
    head_sizes,
    tile_options,
)


@torch.library.custom_op("babn::weibull_attention", mutates_args=())
def weibull_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
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
    call: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output; for each row its divergence, log normalisers (logits, scores, prior), last key."""
    settings = Settings(
        scale, rho, fixed_k, sigma, beta, alpha,
        normalized, sample, truncated, own_moment, with_kl, call,
    )  # fmt: skip
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_empty(batch, heads, n, dtype=torch.float32)
    normalizers = q.new_empty(3, batch, heads, n, dtype=torch.float32)
    row_end = q.new_empty(batch, heads, n, dtype=torch.int32)
    pairs, lifted = Pairs.of(q, m, mask, bias), Lift.of(lift, q, m)
    tiles = tile_options("forward", q, m, mask, bias)
    attend_forward[(triton.cdiv(n, tiles["BM"]), batch * heads)](
        q, k, v, lifted.first, lifted.second,
        q if prior is None else prior, pairs.mask, pairs.bias, q if seeds is None else seeds,
        out, *normalizers, row_end, kl,
        q.stride(), k.stride(), v.stride(), out.stride(), lifted.strides,
        pairs.mask_strides, pairs.bias_strides,
        heads, heads // k.shape[1], n, m, 1 if seeds is None else batch // len(seeds), call,
        **settings.numbers(),
        rest_constant=math.lgamma(alpha) - EULER - 1,
        **head_sizes(q, v), **tiles, **settings.options(prior, mask),
    )  # fmt: skip
    return out, kl, normalizers, row_end


@weibull_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    batch, heads, n, _ = q.shape
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_empty(batch, heads, n, dtype=torch.float32)
    normalizers = q.new_empty(3, batch, heads, n, dtype=torch.float32)
    return out, kl, normalizers, q.new_empty(batch, heads, n, dtype=torch.int32)


@torch.library.custom_op("babn::weibull_attention_backward", mutates_args=())
def weibull_attention_backward(
    dout: Tensor,
    dkl: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
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
    call: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of scores, keys, values, lift and prior."""
    settings = Settings(
        scale, rho, fixed_k, sigma, beta, alpha,
        normalized, sample, truncated, own_moment, with_kl, call,
    )  # fmt: skip
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    pairs, lifted = Pairs.of(q, m, mask, bias), Lift.of(lift, q, m)
    dlift = q.new_empty(0) if lift is None else torch.empty_like(lift)
    dlifted = Lift.of(None if lift is None else dlift, q, m)
    weights, dscores = (q.new_empty(batch, heads, n, m) for _ in range(2))
    row_sum, prior_sum = q.new_empty(2, batch, heads, n, dtype=torch.float32)
    tiles, sizes = tile_options("rows", q, m, mask, bias), head_sizes(q, v)
    options, numbers = settings.options(prior, mask), settings.numbers()
    row_blocks = triton.cdiv(n, tiles["BM"])
    parts = q.new_empty(batch, heads, row_blocks, m, dtype=torch.float32)
    prior_or_any = q if prior is None else prior
    attend_backward_rows[(row_blocks, batch * heads)](
        q, k, v, lifted.first, lifted.second, prior_or_any, pairs.mask, pairs.bias,
        q if seeds is None else seeds, out, *normalizers, row_end, dout, dkl,
        dlifted.first, dlifted.second, weights, dscores, row_sum, prior_sum, parts,
        q.stride(), k.stride(), v.stride(), out.stride(), dout.stride(), lifted.strides,
        pairs.mask_strides, pairs.bias_strides,
        heads, groups, n, m, 1 if seeds is None else batch // len(seeds), call,
        **numbers, **sizes, **tiles, **options,
    )  # fmt: skip
    dk, dv = (q.new_empty(batch, heads, m, x.shape[-1]) for x in (k, v))
    dprior = q.new_empty(batch, heads, m, dtype=torch.float32)
    tiles = tile_options("columns", q, m, mask, bias)
    attend_backward_columns[(triton.cdiv(m, tiles["BN"]), batch * heads)](
        q, k, prior_or_any, pairs.mask, pairs.bias, *normalizers[1:], row_end, dout,
        weights, dscores, row_sum, prior_sum, dk, dv, dprior,
        q.stride(), k.stride(), dout.stride(), pairs.mask_strides, pairs.bias_strides,
        heads, groups, n, m, numbers["factor"],
        **sizes, **tiles, NORMALIZED=normalized, PRIORS=options["PRIORS"],
    )  # fmt: skip
    if options["PRIORS"] == CONTEXTUAL:
        dprior = parts.sum(2)
    elif options["PRIORS"] == ROWWISE:
        dprior = parts.sum(2) - dprior
    if groups > 1:
        dk, dv, dprior = (x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv, dprior))
    return dscores, dk, dv, dlift, dprior


@weibull_attention_backward.register_fake
def _(
    dout: Tensor, dkl: Tensor, q: Tensor, k: Tensor, v: Tensor, lift: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=x.device) for x in (k, v))
    dlift = q.new_empty(0) if lift is None else torch.empty_like(lift)
    dprior = q.new_empty(*k.shape[:3], dtype=torch.float32)
    return q.new_empty(*q.shape[:3], k.shape[2]), dk, dv, dlift, dprior


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, lift, prior, mask, bias, seeds, *ctx.settings = inputs
    out, _, normalizers, row_end = output
    ctx.save_for_backward(q, k, v, lift, prior, mask, bias, seeds, out, normalizers, row_end)


def _backward(ctx: Any, dout: Tensor, dkl: Tensor, *rest: Any) -> tuple[Any, ...]:
    _, k, _, lift, prior, _, bias, *_ = ctx.saved_tensors
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dscores, dk, dv, dlift, dprior = weibull_attention_backward(
        dout, dkl.contiguous(), *ctx.saved_tensors, *ctx.settings
    )
    dq = query_gradient(dscores, k, ctx.settings[0])
    dbias = bias_gradient(dscores, bias)
    dlift = None if lift is None else dlift
    dprior = None if prior is None else dprior
    return dq, dk, dv, dlift, dprior, None, dbias, None, *([None] * len(ctx.settings))


def query_gradient(dscores: Tensor, k: Tensor, scale: float) -> Tensor:
    """The gradient of queries from that of their scores."""
    grouped = dscores.unflatten(1, (k.shape[1], -1))
    return (grouped @ k.unsqueeze(2)).flatten(1, 2) * scale


def bias_gradient(dscores: Tensor, bias: Tensor | None) -> Tensor | None:
    """The gradient of a bias from that of the scores it was added to."""
    return None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype)


weibull_attention.register_autograd(_backward, setup_context=_setup)


class HeadLiftedAttention(torch.autograd.Function):
    """Weibull attention under a map over heads, whose result backward computes once more.

    The map costs little and its result is the largest tensor of the layer.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor, *inputs: Any) -> Any:
        """Output and divergence of each row; `inputs` are the operator's without the lift."""
        q, k, v, *rest = inputs
        lift = head_map(h, weight, bias, False)
        out, kl, normalizers, row_end = weibull_attention(q, k, v, lift, *rest)
        ctx.save_for_backward(h, weight, bias, q, k, v, *rest[:4], out, normalizers, row_end)
        ctx.settings = rest[4:]
        return out, kl

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dkl: Tensor) -> Any:
        """Gradients of the map, then of everything else."""
        h, weight, bias, q, k, v, prior, mask, score_bias, seeds, *saved = ctx.saved_tensors
        lift = head_map(h, weight, bias, False)
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        tensors = (q, k, v, lift, prior, mask, score_bias, seeds, *saved)
        dscores, dk, dv, dlift, dprior = weibull_attention_backward(
            dout, dkl.contiguous(), *tensors, *ctx.settings
        )
        dh, dweight, dbias = head_map_backward(h, weight, h, dlift, False)
        return (
            dh,
            dweight.to(weight.dtype),
            dbias.to(bias.dtype),
            query_gradient(dscores, k, ctx.settings[0]),
            dk,
            dv,
            None if prior is None else dprior,
            None,
            bias_gradient(dscores, score_bias),
            *([None] * (1 + len(ctx.settings))),
        )
