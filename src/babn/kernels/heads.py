"""Linear maps over the heads of an attention-shaped tensor, reading and writing it once.

Matrices of a dozen rows against hundreds of thousands of columns are not what libraries for matrix
products are made for; here each program takes all heads of a block of query-key pairs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher
from babn.kernels.special import LN2, LOG2_E, exp2, softplus_and_slope
from babn.kernels.tiles import dot

PAIRS, PAIRS_WARPS = 128, 4
"""Query-key pairs in a block of the map, and the warps that work on it."""

SUMMED_PAIRS, SUMMED_WARPS = 256, 4
"""The same for sums over pairs."""

PROGRAMS = 1056
"""Programs that share the blocks of sums over pairs: eight for each multiprocessor of an H200."""


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
    X, WEIGHT, BIAS, VALUE, SLOPED, OUT, weight_strides, pair_count,
    HEADS: tl.constexpr, OUTS: tl.constexpr, BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    BIASED: tl.constexpr, SOFTPLUS: tl.constexpr, SLOPE: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One block of pairs of one example; before the map a softplus' slope, or after it softplus."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    if SLOPE:
        # In terms of softplus' value h its slope is 1 - e^-h.
        at = example * HEADS * pair_count
        h = load_heads(VALUE + at, heads, pairs, pair_count, HEADS).to(tl.float32)
        slope = tl.where(h < 1e-3, h - 0.5 * h * h, 1.0 - exp2(-h * LOG2_E))
        x = (x.to(tl.float32) * slope).to(x.dtype)
        store_heads(SLOPED + at, heads, pairs, pair_count, x, HEADS)
    inside = (outs < OUTS)[:, None] & (heads < HEADS)[None, :]
    at = outs[:, None] * weight_strides[0] + heads[None, :] * weight_strides[1]
    u = dot(tl.load(WEIGHT + at, mask=inside, other=0.0).to(x.dtype), x, IEEE)
    if BIASED:
        u += tl.load(BIAS + outs, mask=outs < OUTS, other=0.0).to(tl.float32)[:, None]
    if SOFTPLUS:
        value, _ = softplus_and_slope(u, IEEE)
        u = value * LN2
    store_heads(OUT + example * OUTS * pair_count, outs, pairs, pair_count, u, OUTS)


@triton.jit
def sum_products(
    X, Y, SUMS, pair_count, blocks,
    HEADS: tl.constexpr, OUTS: tl.constexpr, BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    IEEE: tl.constexpr,
):  # fmt: skip
    """Sums over several blocks of pairs of one example, of products of each row of Y with X and 1.

    The last column of sums is that of Y itself.
    """
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    X += example * HEADS * pair_count
    Y += example * OUTS * pair_count
    sums = tl.zeros([BO, BH], tl.float32)
    for block in range(blocks):
        pairs = (tl.program_id(0) * blocks + block) * BP + tl.arange(0, BP)
        x = load_heads(X, heads, pairs, pair_count, HEADS)
        x = tl.where((heads == HEADS)[:, None], 1.0, x).to(x.dtype)
        y = load_heads(Y, outs, pairs, pair_count, OUTS)
        sums += dot(y, tl.trans(x), IEEE)
    part = example * tl.num_programs(0) + tl.program_id(0)
    at = (part * OUTS + outs)[:, None] * (HEADS + 1) + heads[None, :]
    tl.store(SUMS + at, sums, mask=(outs < OUTS)[:, None] & (heads <= HEADS)[None, :])


launch_map = Launcher(map_heads)
launch_sums = Launcher(sum_products)


def _sizes(outs: int, heads: int, more: int = 0) -> dict[str, int]:
    block, out_block = (max(16, triton.next_power_of_2(size)) for size in (heads + more, outs))
    return {"HEADS": heads, "OUTS": outs, "BH": block, "BO": out_block}


def _map(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    softplus: bool = False,
    value: Tensor | None = None,
    sloped: Tensor | None = None,
) -> Tensor:
    batch, heads, n, m = x.shape
    out = x.new_empty(batch, len(weight), n, m)
    launch_map(
        (triton.cdiv(n * m, PAIRS), batch),
        (x, weight, weight if bias is None else bias, x if value is None else value,
         x if sloped is None else sloped, out),
        (weight.stride(), n * m),
        **_sizes(len(weight), heads), BP=PAIRS, BIASED=bias is not None, SOFTPLUS=softplus,
        SLOPE=value is not None, IEEE=x.dtype == torch.float32, num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def mapped(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    """A linear map over heads, in the precision of `h`; followed by softplus if asked."""
    return _map(h.contiguous(), weight, bias, softplus)


def mapped_backward(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tensor, weight and bias, the latter two in float32."""
    h, dout = h.contiguous(), dout.contiguous()
    if softplus:
        sloped = torch.empty_like(dout)
        dh = _map(dout, weight.T, value=out, sloped=sloped)
        dout = sloped
    else:
        dh = _map(dout, weight.T)
    batch, heads, n, m = h.shape
    all_blocks = triton.cdiv(n * m, SUMMED_PAIRS)
    blocks = triton.cdiv(all_blocks * batch, PROGRAMS)
    programs = triton.cdiv(all_blocks, blocks)
    parts = h.new_empty(batch * programs, len(weight), heads + 1, dtype=torch.float32)
    launch_sums(
        (programs, batch), (h, dout, parts), (n * m, blocks),
        **_sizes(len(weight), heads, more=1), BP=SUMMED_PAIRS, IEEE=h.dtype == torch.float32,
        num_warps=SUMMED_WARPS,
    )  # fmt: skip
    sums = parts.sum(0)
    return dh, sums[:, :heads].clone(), sums[:, heads].clone()


@torch.library.custom_op("babn::head_map", mutates_args=())
def head_map(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    """A linear map over heads, in the precision of `h`; followed by softplus if asked."""
    return mapped(h, weight, bias, softplus)


@head_map.register_fake
def _(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    return h.new_empty(h.shape[0], weight.shape[0], *h.shape[2:])


@torch.library.custom_op("babn::head_map_backward", mutates_args=())
def head_map_backward(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tensor, weight and bias, the latter two in float32."""
    return mapped_backward(h, weight, out, dout, softplus)


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
