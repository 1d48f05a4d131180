"""Linear maps over the heads of an attention-shaped tensor, reading and writing it once.

Libraries for matrix products are slow for a dozen rows and hundreds of thousands of columns. Here
each program computes all heads of a block of query-key pairs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher, block, precision
from babn.kernels.special import LN2, softplus_and_slope
from babn.kernels.tiles import dot, pack

PAIRS, PAIRS_WARPS = 128, 4
"""Query-key pairs in a block of a map, and warps of its program."""

SUMMED_PAIRS, SUMMED_WARPS = 64, 1
"""The same for its gradients. Each warp of a program computes all operands of a product over pairs:
one warp in place of four issues 27 instructions per pair in place of 132 in one of the two kernels,
and 12 in place of 40 in the other."""

PROGRAMS = 1848
"""Programs that share the blocks of a map's gradients: 14 for each multiprocessor of an H200, which
its registers allow."""


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
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A map of one block of pairs of one example, then softplus."""
    pairs = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    heads = tl.arange(0, BLOCK_H)
    start = tl.program_id(1).to(tl.int64) * HEADS * pair_count
    x = load_heads(X + start, heads, pairs, pair_count, HEADS)
    w = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(x.dtype)
    b = tl.load(BIAS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    value, _ = softplus_and_slope(dot(w, x, PRECISION) + b[:, None], PRECISION)
    store_heads(OUT + start, heads, pairs, pair_count, value * LN2, HEADS)


@triton.jit
def load_two(X, heads, pairs, pair_count, HEADS: tl.constexpr, DTYPE: tl.constexpr):
    """Two adjacent numbers of each pair, read as one number of 32 bits in half precision."""
    if tl.float32 == DTYPE:
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        at = X + 2 * (heads[:, None].to(tl.int64) * pair_count + pairs[None, :])
        return tl.load(at, inside, other=0.0), tl.load(at + 1, inside, other=0.0)
    else:
        x = load_heads(X, heads, pairs, pair_count, HEADS).to(tl.uint32, bitcast=True)
        low = (x & 0xFFFF).to(tl.uint16).to(DTYPE, bitcast=True)
        return low, (x >> 16).to(tl.uint16).to(DTYPE, bitcast=True)


@triton.jit
def load_weight(WEIGHT, outs, heads, strides, OUTS: tl.constexpr, HEADS: tl.constexpr):
    """A weight, zero outside."""
    inside = (outs < OUTS)[:, None] & (heads < HEADS)[None, :]
    at = outs[:, None] * strides[0] + heads[None, :] * strides[1]
    return tl.load(WEIGHT + at, mask=inside, other=0.0)


@triton.jit
def map_heads_twice(
    X, WEIGHT, BIAS, OUT, weight_strides, pair_count,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Two maps of one block of pairs of one example, then softplus; results interleaved."""
    pairs = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    heads = tl.arange(0, BLOCK_H)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    half = HEADS * weight_strides[0]
    w1 = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(x.dtype)
    w2 = load_weight(WEIGHT + half, heads, heads, weight_strides, HEADS, HEADS).to(x.dtype)
    b1 = tl.load(BIAS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    b2 = tl.load(BIAS + HEADS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    v1, _ = softplus_and_slope(dot(w1, x, PRECISION) + b1[:, None], PRECISION)
    v2, _ = softplus_and_slope(dot(w2, x, PRECISION) + b2[:, None], PRECISION)
    if PRECISION:
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        at = (example * HEADS + heads[:, None].to(tl.int64)) * pair_count + pairs[None, :]
        tl.store(OUT + 2 * at, v1 * LN2, mask=inside)
        tl.store(OUT + 2 * at + 1, v2 * LN2, mask=inside)
    else:
        both = pack(v1 * LN2, v2 * LN2, x.dtype).to(tl.int32, bitcast=True)
        store_heads(OUT + example * HEADS * pair_count, heads, pairs, pair_count, both, HEADS)


@triton.jit
def with_ones(x, heads, HEADS: tl.constexpr):
    """Heads of a block of pairs and a row of ones, whose product gives sums."""
    return tl.where((heads == HEADS)[:, None], 1.0, x).to(x.dtype)


@triton.jit
def store_sums(SUMS, part, outs, heads, sums, OUTS: tl.constexpr, HEADS: tl.constexpr):
    """Stores sums for a weight and, in the last column, its bias."""
    inside = (outs < OUTS)[:, None] & (heads <= HEADS)[None, :]
    at = (part * OUTS + outs)[:, None] * (HEADS + 1) + heads[None, :]
    tl.store(SUMS + at, sums, mask=inside)


@triton.jit
def map_heads_backward(
    DOUT, X, WEIGHT, DX, SUMS, weight_strides, pair_count, blocks,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Several blocks of pairs of one example: the gradient of X, and sums for weight and bias.

    DOUT is the gradient before softplus.
    """
    heads = tl.arange(0, BLOCK_H)
    example = tl.program_id(1).to(tl.int64)
    start = example * HEADS * pair_count
    w = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(DX.dtype.element_ty)
    sums = tl.zeros([BLOCK_H, BLOCK_H], tl.float32)
    for index in range(blocks):
        pairs = (tl.program_id(0) * blocks + index) * BLOCK_P + tl.arange(0, BLOCK_P)
        g = load_heads(DOUT + start, heads, pairs, pair_count, HEADS)
        x = load_heads(X + start, heads, pairs, pair_count, HEADS)
        store_heads(DX + start, heads, pairs, pair_count, dot(tl.trans(w), g, PRECISION), HEADS)
        sums += dot(g, tl.trans(with_ones(x, heads, HEADS)), PRECISION)
    part = example * tl.num_programs(0) + tl.program_id(0)
    store_sums(SUMS, part, heads, heads, sums, HEADS, HEADS)


@triton.jit
def map_heads_twice_backward(
    DLOGITS, X, WEIGHT, DX, SUMS, weight_strides, pair_count, blocks,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same for two maps, whose gradients are interleaved."""
    heads = tl.arange(0, BLOCK_H)
    DTYPE: tl.constexpr = DX.dtype.element_ty
    example = tl.program_id(1).to(tl.int64)
    DLOGITS += example * HEADS * pair_count * (2 if PRECISION else 1)
    X += example * HEADS * pair_count
    DX += example * HEADS * pair_count
    half = HEADS * weight_strides[0]
    w1 = load_weight(WEIGHT, heads, heads, weight_strides, HEADS, HEADS).to(DTYPE)
    w2 = load_weight(WEIGHT + half, heads, heads, weight_strides, HEADS, HEADS).to(DTYPE)
    sums1 = tl.zeros([BLOCK_H, BLOCK_H], tl.float32)
    sums2 = tl.zeros([BLOCK_H, BLOCK_H], tl.float32)
    for index in range(blocks):
        pairs = (tl.program_id(0) * blocks + index) * BLOCK_P + tl.arange(0, BLOCK_P)
        dshape_logits, dscale_logits = load_two(DLOGITS, heads, pairs, pair_count, HEADS, DTYPE)
        x = load_heads(X, heads, pairs, pair_count, HEADS)
        dx = dot(tl.trans(w1), dshape_logits, PRECISION) + dot(
            tl.trans(w2), dscale_logits, PRECISION
        )
        store_heads(DX, heads, pairs, pair_count, dx, HEADS)
        x = tl.trans(with_ones(x, heads, HEADS))
        sums1 += dot(dshape_logits, x, PRECISION)
        sums2 += dot(dscale_logits, x, PRECISION)
    part = 2 * (example * tl.num_programs(0) + tl.program_id(0))
    store_sums(SUMS, part, heads, heads, sums1, HEADS, HEADS)
    store_sums(SUMS, part + 1, heads, heads, sums2, HEADS, HEADS)


launch_map = Launcher(map_heads)
launch_map_backward = Launcher(map_heads_backward)
launch_map_twice = Launcher(map_heads_twice)
launch_map_twice_backward = Launcher(map_heads_twice_backward)


class Shares(NamedTuple):
    """How programs share the pairs of a tensor: each takes a few blocks."""

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


def logits_over_heads(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Softplus of one or two maps over heads, interleaved for each pair."""
    batch, heads, n, m = h.shape
    h, maps = h.contiguous(), len(weight) // heads
    out = h.new_empty(batch, heads, n, maps * m)
    (launch_map_twice if maps == 2 else launch_map)(
        (triton.cdiv(n * m, PAIRS), batch),
        (h, weight, bias, _packed(out, maps)),
        (weight.stride(), n * m),
        HEADS=heads, BLOCK_H=block(heads), BLOCK_P=PAIRS, PRECISION=precision(h.dtype),
        num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def logits_over_heads_backward(h: Tensor, weight: Tensor, dlogits: Tensor, dh: Tensor) -> Tensor:
    """Writes the gradient of the tensor; returns those of weight and bias, side by side, in parts.

    Args:
        h: The tensor.
        weight: The maps.
        dlogits: The gradient before softplus.
        dh: Receives that of the tensor; contiguous.
    """
    heads = h.shape[1]
    maps = len(weight) // heads
    h, shares = h.contiguous(), Shares.of(h.shape[0], h.shape[2] * h.shape[3])
    parts = h.new_empty(shares.parts, maps * heads, heads + 1, dtype=torch.float32)
    (launch_map_twice_backward if maps == 2 else launch_map_backward)(
        shares.grid,
        (_packed(dlogits.contiguous(), maps), h, weight, dh, parts),
        (weight.stride(), shares.pairs, shares.blocks),
        HEADS=heads, BLOCK_H=block(heads + 1), BLOCK_P=SUMMED_PAIRS, PRECISION=precision(h.dtype),
        num_warps=SUMMED_WARPS,
    )  # fmt: skip
    return parts


def _packed(logits: Tensor, maps: int) -> Tensor:
    """Two adjacent numbers in half precision as one of 32 bits."""
    return logits if maps == 1 or logits.dtype == torch.float32 else logits.view(torch.int32)
