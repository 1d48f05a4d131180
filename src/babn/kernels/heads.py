"""Linear maps over the heads of an attention-shaped tensor, reading and writing it once.

Matrices of a dozen rows against hundreds of thousands of columns are not what libraries for matrix
products are made for; here each program takes all heads of a block of query-key pairs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher, digits
from babn.kernels.special import LN2, softplus_and_slope
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
    HEADS: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """A map of one block of pairs of one example, then softplus."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads = tl.arange(0, BH)
    start = tl.program_id(1).to(tl.int64) * HEADS * pair_count
    x = load_heads(X + start, heads, pairs, pair_count, HEADS)
    w = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(x.dtype)
    b = tl.load(BIAS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    value, _ = softplus_and_slope(dot(w, x, IEEE) + b[:, None], IEEE)
    store_heads(OUT + start, heads, pairs, pair_count, value * LN2, HEADS)


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
    DOUT, X, WEIGHT, DX, SUMS, weight_strides, pair_count, blocks,
    HEADS: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Several blocks of pairs of one example: the gradient of X, and sums for weight and bias.

    DOUT is the gradient before softplus.
    """
    heads = tl.arange(0, BH)
    example = tl.program_id(1).to(tl.int64)
    start = example * HEADS * pair_count
    w = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(DX.dtype.element_ty)
    sums = tl.zeros([BH, BH], tl.float32)
    for block in range(blocks):
        pairs = (tl.program_id(0) * blocks + block) * BP + tl.arange(0, BP)
        g = load_heads(DOUT + start, heads, pairs, pair_count, HEADS)
        x = load_heads(X + start, heads, pairs, pair_count, HEADS)
        store_heads(DX + start, heads, pairs, pair_count, dot(tl.trans(w), g, IEEE), HEADS)
        sums += dot(g, tl.trans(with_ones(x, heads, HEADS)), IEEE)
    part = example * tl.num_programs(0) + tl.program_id(0)
    store_sums(SUMS, part, heads, heads, sums, HEADS, HEADS)


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


def block(size: int) -> int:
    """The smallest size of a block that holds as many heads."""
    return max(16, triton.next_power_of_2(size))


class Shares(NamedTuple):
    """How programs share the pairs of a tensor: a few blocks for each."""

    grid: tuple[int, int]
    pairs: int
    blocks: int

    @classmethod
    def of(cls, batch: int, pairs: int) -> "Shares":
        """The shares of programs that compute gradients."""
        everything = triton.cdiv(pairs, SUMMED_PAIRS)
        blocks = triton.cdiv(everything * batch, PROGRAMS)
        return cls((triton.cdiv(everything, blocks), batch), pairs, blocks)

    @property
    def parts(self) -> int:
        """How many programs there are."""
        return self.grid[0] * self.grid[1]


def lifted_by_heads(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One or two maps over heads with softplus, their results side by side for each pair."""
    batch, heads, n, m = h.shape
    h, maps = h.contiguous(), len(weight) // heads
    out = h.new_empty(batch, heads, n, maps * m)
    (launch_lift if maps == 2 else launch_map)(
        (triton.cdiv(n * m, PAIRS), batch),
        (h, weight, bias, _packed(out, maps)),
        (weight.stride(), n * m),
        HEADS=heads, BH=block(heads), BP=PAIRS, IEEE=digits(h.dtype),
        num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def lifted_by_heads_backward(h: Tensor, weight: Tensor, dlift: Tensor, dh: Tensor) -> Tensor:
    """Writes the gradient of the tensor; returns that of weight and bias side by side, in parts.

    Args:
        h: The tensor.
        weight: The maps.
        dlift: The gradient before softplus.
        dh: Contiguous room for that of the tensor.
    """
    heads = h.shape[1]
    maps = len(weight) // heads
    h, shares = h.contiguous(), Shares.of(h.shape[0], h.shape[2] * h.shape[3])
    parts = h.new_empty(shares.parts, maps * heads, heads + 1, dtype=torch.float32)
    (launch_lift_backward if maps == 2 else launch_map_backward)(
        shares.grid,
        (_packed(dlift.contiguous(), maps), h, weight, dh, parts),
        (weight.stride(), shares.pairs, shares.blocks),
        HEADS=heads, BH=block(heads + 1), BP=SUMMED_PAIRS, IEEE=digits(h.dtype),
        num_warps=SUMMED_WARPS,
    )  # fmt: skip
    return parts


def _packed(lift: Tensor, maps: int) -> Tensor:
    """Two half-precision numbers side by side as one of 32 bits."""
    return lift if maps == 1 or lift.dtype == torch.float32 else lift.view(torch.int32)
