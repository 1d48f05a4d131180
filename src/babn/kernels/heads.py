"""Linear maps over the heads of an attention-shaped tensor, reading and writing it once.

Matrices of a dozen rows against hundreds of thousands of columns are not what libraries for matrix
products are made for; here each program takes all heads of a block of query-key pairs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.special import LN2, LOG2_E, exp2, softplus_and_slope
from babn.kernels.tiles import dot

PAIRS, BACKWARD_PAIRS = 128, 64
"""Query-key pairs in a block, as many as fit the registers."""

BLOCKS = 64
"""Blocks that one program of the backward kernel sums over."""


@triton.jit
def load_heads(X, heads, pairs, pair_count, HEADS: tl.constexpr):
    """All heads of a block of pairs, zero outside."""
    inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
    return tl.load(X + heads[:, None].to(tl.int64) * pair_count + pairs[None, :], inside, other=0.0)


@triton.jit
def store_heads(X, heads, pairs, pair_count, values, HEADS: tl.constexpr):
    """Stores all heads of a block of pairs."""
    inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
    at = X + heads[:, None].to(tl.int64) * pair_count + pairs[None, :]
    tl.store(at, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def map_heads(
    X, WEIGHT, BIAS, OUT, pair_count, HEADS: tl.constexpr, OUTS: tl.constexpr,
    BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    SOFTPLUS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One block of pairs of one example."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    inside = (outs < OUTS)[:, None] & (heads < HEADS)[None, :]
    weight = tl.load(WEIGHT + outs[:, None] * HEADS + heads[None, :], mask=inside, other=0.0)
    u = dot(weight, x, IEEE) + tl.load(BIAS + outs, mask=outs < OUTS, other=0.0)[:, None]
    if SOFTPLUS:
        value, _ = softplus_and_slope(u, IEEE)
        u = value * LN2
    store_heads(OUT + example * OUTS * pair_count, outs, pairs, pair_count, u, OUTS)


@triton.jit
def map_heads_backward(
    X, WEIGHT, OUT, DOUT, DX, DWEIGHT, DBIAS, pair_count, HEADS: tl.constexpr, OUTS: tl.constexpr,
    BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr, REPEATS: tl.constexpr,
    SOFTPLUS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Several blocks of pairs of one example; partial sums for weight and bias."""
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    X += example * HEADS * pair_count
    DX += example * HEADS * pair_count
    OUT += example * OUTS * pair_count
    DOUT += example * OUTS * pair_count
    inside = (outs < OUTS)[:, None] & (heads < HEADS)[None, :]
    weight = tl.load(WEIGHT + outs[:, None] * HEADS + heads[None, :], mask=inside, other=0.0)
    dweight = tl.zeros([BO, BH], tl.float32)
    dbias = tl.zeros([BO], tl.float32)
    for block in range(REPEATS):
        pairs = (tl.program_id(0) * REPEATS + block) * BP + tl.arange(0, BP)
        x = load_heads(X, heads, pairs, pair_count, HEADS)
        du = load_heads(DOUT, outs, pairs, pair_count, OUTS)
        if SOFTPLUS:
            # The slope of softplus is 1 - e^-h in terms of its value h.
            h = load_heads(OUT, outs, pairs, pair_count, OUTS).to(tl.float32)
            slope = tl.where(h < 1e-3, h - 0.5 * h * h, 1.0 - exp2(-h * LOG2_E))
            du = (du.to(tl.float32) * slope).to(x.dtype)
        store_heads(DX, heads, pairs, pair_count, dot(tl.trans(weight), du, IEEE), HEADS)
        dweight += dot(du, tl.trans(x), IEEE)
        dbias += tl.sum(du.to(tl.float32), 1)
    part = example * tl.num_programs(0) + tl.program_id(0)
    at = part * OUTS * HEADS + outs[:, None] * HEADS + heads[None, :]
    tl.store(DWEIGHT + at, dweight, mask=inside)
    tl.store(DBIAS + part * OUTS + outs, dbias, mask=outs < OUTS)


def _sizes(weight: Tensor) -> dict[str, int]:
    outs, heads = weight.shape
    block, out_block = (max(16, triton.next_power_of_2(size)) for size in (heads, outs))
    return {"HEADS": heads, "OUTS": outs, "BH": block, "BO": out_block}


@torch.library.custom_op("babn::head_map", mutates_args=())
def head_map(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    """A linear map over heads, in the precision of `h`; followed by softplus if asked."""
    h = h.contiguous()
    batch, _, n, m = h.shape
    out = h.new_empty(batch, len(weight), n, m)
    map_heads[(triton.cdiv(n * m, PAIRS), batch)](
        h, weight.to(h.dtype), bias.to(h.dtype), out, n * m,
        BP=PAIRS, SOFTPLUS=softplus, IEEE=h.dtype == torch.float32, **_sizes(weight),
    )  # fmt: skip
    return out


@head_map.register_fake
def _(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    return h.new_empty(h.shape[0], weight.shape[0], *h.shape[2:])


@torch.library.custom_op("babn::head_map_backward", mutates_args=())
def head_map_backward(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tensor, weight and bias, the latter two in float32."""
    h, dout = h.contiguous(), dout.contiguous()
    batch, _, n, m = h.shape
    programs = triton.cdiv(n * m, BACKWARD_PAIRS * BLOCKS)
    dh = torch.empty_like(h)
    dweight = h.new_empty(batch * programs, *weight.shape, dtype=torch.float32)
    dbias = h.new_empty(batch * programs, len(weight), dtype=torch.float32)
    map_heads_backward[(programs, batch)](
        h, weight.to(h.dtype), out, dout, dh, dweight, dbias, n * m,
        REPEATS=BLOCKS, BP=BACKWARD_PAIRS, SOFTPLUS=softplus, IEEE=h.dtype == torch.float32,
        **_sizes(weight),
    )  # fmt: skip
    return dh, dweight.sum(0), dbias.sum(0)


@head_map_backward.register_fake
def _(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dweight = torch.empty_like(weight, dtype=torch.float32)
    return h.new_empty(h.shape), dweight, dweight.new_empty(len(weight))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, weight, bias, ctx.softplus = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(h, weight, output if ctx.softplus else h)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    h, weight, out = ctx.saved_tensors
    dh, dweight, dbias = head_map_backward(h, weight, out, dout, ctx.softplus)
    return dh, dweight.to(weight.dtype), dbias.to(ctx.bias_dtype), None


head_map.register_autograd(_backward, setup_context=_setup)
