"""Weibull attention as one operator with gradients, for eager and compiled models."""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from babn.kernels.backward import attend_backward_columns, attend_backward_rows
from babn.kernels.forward import attend_forward
from babn.kernels.launch import (
    EULER,
    LN2,
    LOG2_E,
    broadcast_strides,
    head_sizes,
    is_full,
    tile,
)


def _options(
    lift: Tensor | None,
    prior: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    rho: float,
    fixed_k: float,
    sigma: float,
    normalized: bool,
    sample: bool,
    truncated: bool,
    own_moment: bool,
    with_kl: bool,
    dtype: torch.dtype,
    n: int,
    m: int,
    blocks: dict[str, int],
) -> dict[str, Any]:
    """What the kernels are compiled for."""
    shape = 0 if fixed_k > 0 else (2 if rho > 0 else 1)
    rowwise = mask is not None and (mask.shape[1] > 1 or mask.shape[2] > 1)
    priors = 0 if not with_kl else 2 if prior is None else 3 if rowwise else 1
    return {
        "SHAPE": shape,
        "LIFT": sigma > 0,
        "NORMALIZED": normalized,
        "SAMPLE": sample,
        "TRUNCATED": truncated,
        "OWN_MOMENT": own_moment,
        "PRIORS": priors,
        "MASKED": mask is not None,
        "BIASED": bias is not None,
        "IEEE": dtype == torch.float32,
        "FULL": is_full(mask, n, m, blocks),
    }


def _lift_layout(lift: Tensor | None, heads: int, m: int) -> tuple[int, tuple[int, int, int]]:
    """Where the second map's values begin in `lift`, and its strides over batch, head and query.

    `lift` is contiguous with two maps side by side, over keys or over heads, or with one map.
    """
    if lift is None:
        return 0, (0, 0, 0)
    a, b, c, _ = lift.stride()
    if lift.shape[1] == 2 * heads:
        return heads * b, (a, b, c)
    return (m if lift.shape[3] == 2 * m else 0), (a, b, c)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, divergence of each row, and the rows' log normalisers of logits, scores and prior."""
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_zeros(batch, heads, n, dtype=torch.float32)
    normalizers = q.new_zeros(3, batch, heads, n, dtype=torch.float32)
    blocks = tile(n, m)
    options = _options(
        lift,
        prior,
        mask,
        bias,
        rho,
        fixed_k,
        sigma,
        normalized,
        sample,
        truncated,
        own_moment,
        with_kl,
        q.dtype,
        n,
        m,
        blocks,
    )
    offset, lift_strides = _lift_layout(lift, heads, m)
    nothing = q
    u1 = nothing if lift is None else lift
    u2 = nothing if lift is None else lift.view(-1)[offset:]
    full = torch.Size((batch, heads, n, m))
    grid = (triton.cdiv(n, blocks["BM"]), batch * heads)
    attend_forward[grid](
        q,
        k,
        v,
        u1,
        u2,
        nothing if prior is None else prior,
        nothing if mask is None else mask.view(torch.uint8),
        nothing if bias is None else bias,
        nothing if seeds is None else seeds,
        out,
        *normalizers,
        kl,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *out.stride()[:3],
        *lift_strides,
        *broadcast_strides(mask, full),
        *broadcast_strides(bias, full),
        heads,
        groups,
        n,
        m,
        1 if seeds is None else batch // len(seeds),
        call,
        scale * LOG2_E,
        rho * LN2,
        max(fixed_k, 1e-4),
        sigma * LN2,
        math.log2(beta),
        alpha,
        math.lgamma(alpha) - EULER - 1,
        **head_sizes(q, v),
        **blocks,
        **options,
    )
    return out, kl, normalizers


@weibull_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    batch, heads, n, _ = q.shape
    out = q.new_empty(batch, n, heads, v.shape[-1]).transpose(1, 2)
    kl = q.new_empty(batch, heads, n, dtype=torch.float32)
    return out, kl, q.new_empty(3, batch, heads, n, dtype=torch.float32)


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, lift, prior and scores (for a bias)."""
    batch, heads, n, _ = q.shape
    groups, m = heads // k.shape[1], k.shape[2]
    blocks = tile(n, m)
    options = _options(
        lift,
        prior,
        mask,
        bias,
        rho,
        fixed_k,
        sigma,
        normalized,
        sample,
        truncated,
        own_moment,
        with_kl,
        q.dtype,
        n,
        m,
        blocks,
    )
    offset, lift_strides = _lift_layout(lift, heads, m)
    nothing = q
    u1 = nothing if lift is None else lift
    u2 = nothing if lift is None else lift.view(-1)[offset:]
    dlift = q.new_empty(0) if lift is None else torch.empty_like(lift)
    du2 = dlift if lift is None else dlift.view(-1)[offset:]
    weights = torch.empty(batch, heads, n, m, dtype=q.dtype, device=q.device)
    dphi = torch.empty_like(weights)
    dq = torch.empty(batch, heads, n, q.shape[-1], dtype=q.dtype, device=q.device)
    row_sum, prior_sum = q.new_zeros(2, batch, heads, n, dtype=torch.float32)
    full = torch.Size((batch, heads, n, m))
    row_blocks = triton.cdiv(n, blocks["BM"])
    parts = q.new_zeros(batch, heads, row_blocks, m, dtype=torch.float32)
    prior_ = nothing if prior is None else prior
    mask_ = nothing if mask is None else mask.view(torch.uint8)
    bias_ = nothing if bias is None else bias
    sizes = head_sizes(q, v)
    attend_backward_rows[(row_blocks, batch * heads)](
        q,
        k,
        v,
        u1,
        u2,
        prior_,
        mask_,
        bias_,
        nothing if seeds is None else seeds,
        out,
        *normalizers,
        dout,
        dkl,
        dq,
        dlift,
        du2,
        weights,
        dphi,
        row_sum,
        prior_sum,
        parts,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *out.stride()[:3],
        *dout.stride()[:3],
        *lift_strides,
        *lift_strides,
        *broadcast_strides(mask, full),
        *broadcast_strides(bias, full),
        heads,
        groups,
        n,
        m,
        1 if seeds is None else batch // len(seeds),
        call,
        scale * LOG2_E,
        rho * LN2,
        max(fixed_k, 1e-4),
        sigma * LN2,
        math.log2(beta),
        alpha,
        **sizes,
        **blocks,
        **options,
    )
    dk = torch.empty(batch, heads, m, k.shape[-1], dtype=k.dtype, device=q.device)
    dv = torch.empty(batch, heads, m, v.shape[-1], dtype=v.dtype, device=q.device)
    dprior = q.new_zeros(batch, heads, m, dtype=torch.float32)
    shared = ("NORMALIZED", "PRIORS", "MASKED", "BIASED", "IEEE", "FULL")
    common = {name: options[name] for name in shared}
    attend_backward_columns[(triton.cdiv(m, blocks["BN"]), batch * heads)](
        q,
        k,
        prior_,
        mask_,
        bias_,
        *normalizers[1:],
        dout,
        weights,
        dphi,
        row_sum,
        prior_sum,
        dk,
        dv,
        dprior,
        *q.stride()[:3],
        *k.stride()[:3],
        *dout.stride()[:3],
        *broadcast_strides(mask, full),
        *broadcast_strides(bias, full),
        heads,
        groups,
        n,
        m,
        scale * LOG2_E,
        **sizes,
        **blocks,
        **common,
    )
    if options["PRIORS"] in (1, 3):
        dprior = parts.sum(2) - dprior
    if groups > 1:
        dk, dv, dprior = (x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv, dprior))
    return dq, dk, dv, dlift, dprior, dphi if bias is not None else q.new_empty(0)


@weibull_attention_backward.register_fake
def _(
    dout: Tensor,
    dkl: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lift: Tensor | None,
    prior: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    contiguous = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    dlift = q.new_empty(0) if lift is None else torch.empty_like(lift)
    dprior = q.new_empty(*k.shape[:3], dtype=torch.float32)
    dscores = q.new_empty(0) if bias is None else q.new_empty(*q.shape[:3], k.shape[2])
    return *contiguous, dlift, dprior, dscores


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, lift, prior, mask, bias, seeds, *ctx.numbers = inputs
    out, _, normalizers = output
    ctx.save_for_backward(q, k, v, lift, prior, mask, bias, seeds, out, normalizers)


def _backward(ctx: Any, dout: Tensor, dkl: Tensor, *rest: Any) -> tuple[Any, ...]:
    _, _, _, lift, prior, _, bias, *_ = ctx.saved_tensors
    if dout.stride(-1) != 1:
        dout = dout.contiguous()
    dq, dk, dv, dlift, dprior, dscores = weibull_attention_backward(
        dout, dkl.contiguous(), *ctx.saved_tensors, *ctx.numbers
    )
    dbias = None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype)
    return (
        dq,
        dk,
        dv,
        None if lift is None else dlift,
        None if prior is None else dprior.to(prior.dtype),
        None,
        dbias,
        None,
        *([None] * len(ctx.numbers)),
    )


weibull_attention.register_autograd(_backward, setup_context=_setup)
