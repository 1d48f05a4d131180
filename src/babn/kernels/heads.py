"""Linear maps over the heads of an attention-shaped tensor, reading and writing it once.

Matrices of a dozen rows against hundreds of thousands of columns are not what libraries for matrix
products are made for; here each program takes all heads of a block of query-key pairs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher
from babn.kernels.special import LN2, LOG2_E, exp2, softplus_and_slope
from babn.kernels.tiles import dot, pack

PAIRS, PAIRS_WARPS = 128, 4
"""Query-key pairs in a block of the map, and the warps that work on it."""

SUMMED_PAIRS, SUMMED_WARPS = 64, 1
"""The same for its gradients. Each warp of a program computes all that a product over pairs takes
in, so there is one; several would do the same work several times."""

PROGRAMS = 1848
"""Programs that share the blocks of a map's gradients: fourteen for each multiprocessor of an H200,
as many as its registers allow."""


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
    X, WEIGHT, BIAS, OUT, weight_strides, pair_count,
    HEADS: tl.constexpr, OUTS: tl.constexpr, BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    SOFTPLUS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One block of pairs of one example."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    w = load_weight(WEIGHT, outs, heads, weight_strides, OUTS, HEADS).to(x.dtype)
    u = dot(w, x, IEEE) + tl.load(BIAS + outs, mask=outs < OUTS, other=0.0).to(tl.float32)[:, None]
    if SOFTPLUS:
        value, _ = softplus_and_slope(u, IEEE)
        u = value * LN2
    store_heads(OUT + example * OUTS * pair_count, outs, pairs, pair_count, u, OUTS)


@triton.jit
def load_two(X, heads, pairs, pair_count, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Two numbers for each pair that lie side by side, read as one in half precision."""
    if tl.float32 == HALF:
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        at = X + 2 * (heads[:, None].to(tl.int64) * pair_count + pairs[None, :])
        return tl.load(at, inside, other=0.0), tl.load(at + 1, inside, other=0.0)
    else:
        x = load_heads(X, heads, pairs, pair_count, HEADS).to(tl.uint32, bitcast=True)
        low = (x & 0xFFFF).to(tl.uint16).to(HALF, bitcast=True)
        return low, (x >> 16).to(tl.uint16).to(HALF, bitcast=True)


@triton.jit
def load_weight(WEIGHT, outs, heads, strides, OUTS: tl.constexpr, HEADS: tl.constexpr):
    """A weight, zero outside."""
    inside = (outs < OUTS)[:, None] & (heads < HEADS)[None, :]
    at = outs[:, None] * strides[0] + heads[None, :] * strides[1]
    return tl.load(WEIGHT + at, mask=inside, other=0.0)


@triton.jit
def lift_heads(
    X, WEIGHT, BIAS, OUT, weight_strides, pair_count,
    HEADS: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Two maps of one block of pairs of one example, then softplus; results side by side."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads = tl.arange(0, BH)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    half = HEADS * weight_strides[0]
    w1 = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(x.dtype)
    w2 = load_weight(WEIGHT + half, heads, heads, weight_strides, HEADS, HEADS).to(x.dtype)
    b1 = tl.load(BIAS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    b2 = tl.load(BIAS + HEADS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    v1, _ = softplus_and_slope(dot(w1, x, IEEE) + b1[:, None], IEEE)
    v2, _ = softplus_and_slope(dot(w2, x, IEEE) + b2[:, None], IEEE)
    if IEEE:
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        at = (example * HEADS + heads[:, None].to(tl.int64)) * pair_count + pairs[None, :]
        tl.store(OUT + 2 * at, v1 * LN2, mask=inside)
        tl.store(OUT + 2 * at + 1, v2 * LN2, mask=inside)
    else:
        both = pack(v1 * LN2, v2 * LN2, x.dtype).to(tl.int32, bitcast=True)
        store_heads(OUT + example * HEADS * pair_count, heads, pairs, pair_count, both, HEADS)


@triton.jit
def with_ones(x, heads, HEADS: tl.constexpr):
    """Heads of a block of pairs with a row of ones after them, for sums."""
    return tl.where((heads == HEADS)[:, None], 1.0, x).to(x.dtype)


@triton.jit
def store_sums(SUMS, part, outs, heads, sums, OUTS: tl.constexpr, HEADS: tl.constexpr):
    """Stores sums of products; the last column is that of sums alone."""
    inside = (outs < OUTS)[:, None] & (heads <= HEADS)[None, :]
    at = (part * OUTS + outs)[:, None] * (HEADS + 1) + heads[None, :]
    tl.store(SUMS + at, sums, mask=inside)


@triton.jit
def map_heads_backward(
    DOUT, VALUE, X, WEIGHT, DX, SUMS, weight_strides, pair_count, blocks,
    HEADS: tl.constexpr, OUTS: tl.constexpr, BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    SOFTPLUS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Several blocks of pairs of one example: the gradient of X, and sums for weight and bias.

    VALUE is what the map gave after softplus.
    """
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    DOUT += example * OUTS * pair_count
    VALUE += example * OUTS * pair_count
    X += example * HEADS * pair_count
    DX += example * HEADS * pair_count
    w = load_weight(WEIGHT, outs, heads, weight_strides, OUTS, HEADS).to(DX.dtype.element_ty)
    sums = tl.zeros([BO, BH], tl.float32)
    for block in range(blocks):
        pairs = (tl.program_id(0) * blocks + block) * BP + tl.arange(0, BP)
        g = load_heads(DOUT, outs, pairs, pair_count, OUTS)
        x = load_heads(X, heads, pairs, pair_count, HEADS)
        if SOFTPLUS:
            # In terms of softplus' value h its slope is 1 - e^-h.
            h = load_heads(VALUE, outs, pairs, pair_count, OUTS).to(tl.float32)
            slope = 1.0 - exp2(-h * LOG2_E)
            if IEEE:
                slope = tl.where(h < 1e-3, h - 0.5 * h * h, slope)
            g = (g.to(tl.float32) * slope).to(g.dtype)
        store_heads(DX, heads, pairs, pair_count, dot(tl.trans(w), g, IEEE), HEADS)
        sums += dot(g, tl.trans(with_ones(x, heads, HEADS)), IEEE)
    part = example * tl.num_programs(0) + tl.program_id(0)
    store_sums(SUMS, part, outs, heads, sums, OUTS, HEADS)


@triton.jit
def lift_heads_backward(
    DLIFT, X, WEIGHT, DX, SUMS, weight_strides, pair_count, blocks,
    HEADS: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """The same for two maps, whose gradients lie side by side."""
    heads = tl.arange(0, BH)
    HALF: tl.constexpr = DX.dtype.element_ty
    example = tl.program_id(1).to(tl.int64)
    DLIFT += example * HEADS * pair_count * (2 if IEEE else 1)
    X += example * HEADS * pair_count
    DX += example * HEADS * pair_count
    half = HEADS * weight_strides[0]
    w1 = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(HALF)
    w2 = load_weight(WEIGHT + half, heads, heads, weight_strides, HEADS, HEADS).to(HALF)
    sums1 = tl.zeros([BH, BH], tl.float32)
    sums2 = tl.zeros([BH, BH], tl.float32)
    for block in range(blocks):
        pairs = (tl.program_id(0) * blocks + block) * BP + tl.arange(0, BP)
        du1, du2 = load_two(DLIFT, heads, pairs, pair_count, HEADS, HALF)
        x = load_heads(X, heads, pairs, pair_count, HEADS)
        dx = dot(tl.trans(w1), du1, IEEE) + dot(tl.trans(w2), du2, IEEE)
        store_heads(DX, heads, pairs, pair_count, dx, HEADS)
        x = tl.trans(with_ones(x, heads, HEADS))
        sums1 += dot(du1, x, IEEE)
        sums2 += dot(du2, x, IEEE)
    part = 2 * (example * tl.num_programs(0) + tl.program_id(0))
    store_sums(SUMS, part, heads, heads, sums1, HEADS, HEADS)
    store_sums(SUMS, part + 1, heads, heads, sums2, HEADS, HEADS)


launch_map = Launcher(map_heads)
launch_map_backward = Launcher(map_heads_backward)
launch_lift = Launcher(lift_heads)
launch_lift_backward = Launcher(lift_heads_backward)


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def mapped(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    """A linear map over heads, in the precision of `h`; followed by softplus if asked."""
    batch, heads, n, m = h.shape
    h, outs = h.contiguous(), len(weight)
    out = h.new_empty(batch, outs, n, m)
    launch_map(
        (triton.cdiv(n * m, PAIRS), batch),
        (h, weight, bias, out),
        (weight.stride(), n * m),
        HEADS=heads, OUTS=outs, BH=_block(heads), BO=_block(outs), BP=PAIRS, SOFTPLUS=softplus,
        IEEE=h.dtype == torch.float32, num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def mapped_backward(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the tensor, and of weight and bias side by side in float32."""
    heads, outs = h.shape[1], len(weight)
    h, dh, shares = h.contiguous(), torch.empty_like(h), _Shares.of(h)
    parts = h.new_empty(shares.parts, outs, heads + 1, dtype=torch.float32)
    launch_map_backward(
        shares.grid,
        (dout.contiguous(), out, h, weight, dh, parts),
        (weight.stride(), shares.pairs, shares.blocks),
        HEADS=heads, OUTS=outs, BH=_block(heads + 1), BO=_block(outs), BP=SUMMED_PAIRS,
        SOFTPLUS=softplus, IEEE=h.dtype == torch.float32, num_warps=SUMMED_WARPS,
    )  # fmt: skip
    return dh, parts.sum(0)


class _Shares(NamedTuple):
    """How programs share the pairs of a tensor: a few blocks for each."""

    grid: tuple[int, int]
    pairs: int
    blocks: int

    @classmethod
    def of(cls, h: Tensor) -> "_Shares":
        batch, pairs = h.shape[0], h.shape[2] * h.shape[3]
        everything = triton.cdiv(pairs, SUMMED_PAIRS)
        blocks = triton.cdiv(everything * batch, PROGRAMS)
        return cls((triton.cdiv(everything, blocks), batch), pairs, blocks)

    @property
    def parts(self) -> int:
        return self.grid[0] * self.grid[1]


def lifted_by_heads(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One or two maps over heads with softplus, their results side by side for each pair."""
    batch, heads, n, m = h.shape
    if len(weight) == heads:
        return mapped(h, weight, bias, True)
    h = h.contiguous()
    out = h.new_empty(batch, heads, n, 2 * m)
    launch_lift(
        (triton.cdiv(n * m, PAIRS), batch),
        (h, weight, bias, _packed(out)),
        (weight.stride(), n * m),
        HEADS=heads, BH=_block(heads), BP=PAIRS, IEEE=h.dtype == torch.float32,
        num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def lifted_by_heads_backward(h: Tensor, weight: Tensor, dlift: Tensor) -> tuple[Tensor, Tensor]:
    """The same of one or two maps, for the gradient before softplus."""
    heads = h.shape[1]
    if len(weight) == heads:
        return mapped_backward(h, weight, h, dlift, False)
    h, dh, shares = h.contiguous(), torch.empty_like(h), _Shares.of(h)
    parts = h.new_empty(shares.parts, 2 * heads, heads + 1, dtype=torch.float32)
    launch_lift_backward(
        shares.grid,
        (_packed(dlift), h, weight, dh, parts),
        (weight.stride(), shares.pairs, shares.blocks),
        HEADS=heads, BH=_block(heads + 1), BP=SUMMED_PAIRS, IEEE=h.dtype == torch.float32,
        num_warps=SUMMED_WARPS,
    )  # fmt: skip
    return dh, parts.sum(0)


def _packed(lift: Tensor) -> Tensor:
    """Two half-precision numbers side by side as one of 32 bits."""
    return lift if lift.dtype == torch.float32 else lift.view(torch.int32)


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
) -> tuple[Tensor, Tensor]:
    """Gradients of the tensor, and of weight and bias side by side in float32."""
    return mapped_backward(h, weight, out, dout, softplus)


@head_map_backward.register_fake
def _(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor]:
    outs, heads = weight.shape
    return h.new_empty(h.shape), h.new_empty(outs, heads + 1, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, weight, bias, ctx.softplus = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(h, weight, output if ctx.softplus else h)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    h, weight, out = ctx.saved_tensors
    dh, dmap = head_map_backward(h, weight, out, dout, ctx.softplus)
    return dh, dmap[:, :-1].to(weight.dtype), dmap[:, -1].to(ctx.bias_dtype), None


head_map.register_autograd(_backward, setup_context=_setup)
