"""Linear maps over the heads of an attention-shaped tensor, and the upward path made of them.

Libraries for matrix products are slow for a dozen rows and hundreds of thousands of columns. Here
each program computes all heads of a block of query-key pairs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher, Operator, block, ceil_div, precision
from babn.kernels.special import LOG2_E, softplus
from babn.kernels.tiles import dot, tile_and_plane

PAIRS, PAIRS_WARPS = 128, 4
"""Query-key pairs in a block of a map, and warps of its program."""

SUMMED_PAIRS, SUMMED_WARPS = 64, 1
"""The same for its gradients. Each warp of a program computes all operands of a product over pairs:
one warp in place of four issues 27 instructions per pair in place of 132."""

PROGRAMS = 1848
"""Programs that share the blocks of a map's gradients, so that there are few partial sums. The
kernel itself takes .07 to .08 ms on an H200, also with one program for each block."""


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
def load_weight(MAP, heads, HEADS: tl.constexpr, DTYPE: tl.constexpr):
    """The weight of a map, zero outside; its bias is the last column."""
    inside = (heads < HEADS)[:, None] & (heads < HEADS)[None, :]
    at = MAP + heads[:, None] * (HEADS + 1) + heads[None, :]
    return tl.load(at, mask=inside, other=0.0).to(DTYPE)


@triton.jit
def mapped(x, MAP, heads, HEADS: tl.constexpr, PRECISION: tl.constexpr):
    """Softplus of a map."""
    w = load_weight(MAP, heads, HEADS, x.dtype)
    at = MAP + heads * (HEADS + 1) + HEADS
    b = tl.load(at, mask=heads < HEADS, other=0.0).to(tl.float32)
    return softplus(dot(w, x, PRECISION == "ieee") + b[:, None], PRECISION != "half")


@triton.jit
def map_heads(
    X, MAP, OUT, pair_count,
    HEADS: tl.constexpr, MAPS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Softplus of one map of one block of pairs of one example, or of two, interleaved."""
    tile, example = tile_and_plane(pair_count, BLOCK_P)
    first = tile * BLOCK_P
    heads = tl.arange(0, BLOCK_H)
    start = example.to(tl.int64) * HEADS * pair_count
    x = load_heads(X + start, heads, first + tl.arange(0, BLOCK_P), pair_count, HEADS)
    value = mapped(x, MAP, heads, HEADS, PRECISION)
    if MAPS == 2:
        second = mapped(x, MAP + HEADS * (HEADS + 1), heads, HEADS, PRECISION)
        value = tl.interleave(value, second)
    pairs = MAPS * first + tl.arange(0, MAPS * BLOCK_P)
    store_heads(OUT + MAPS * start, heads, pairs, MAPS * pair_count, value, HEADS)


@triton.jit
def slope_of(h, PRECISION: tl.constexpr):
    """The slope of softplus in terms of its value h, 1 - e^-h."""
    slope = 1.0 - tl.exp2(-h * LOG2_E)
    if PRECISION != "half":
        slope = tl.where(h < 1e-3, h - 0.5 * h * h, slope)
    return slope


@triton.jit
def store_sums(SUMS, part, heads, sums, HEADS: tl.constexpr):
    """Stores sums for a weight and, in the last column, its bias."""
    inside = (heads < HEADS)[:, None] & (heads <= HEADS)[None, :]
    at = (part * HEADS + heads)[:, None] * (HEADS + 1) + heads[None, :]
    tl.store(SUMS + at, sums, mask=inside)


@triton.jit
def map_heads_backward(
    DOUT, OUT, X, MAP, ADDED, DX, SUMS, pair_count, blocks,
    HEADS: tl.constexpr, MAPS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
    PRECISION: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_ADDED: tl.constexpr,
):  # fmt: skip
    """Several blocks of pairs of one example: the gradient of X, and sums for weight and bias.

    DOUT is the gradient of OUT if HAS_SLOPE, otherwise that before softplus. ADDED is added to the
    gradient of X if HAS_ADDED.
    """
    heads = tl.arange(0, BLOCK_H)
    tiles = tl.cdiv(pair_count, BLOCK_P * blocks)
    tile = tl.program_id(0) % tiles
    start = (tl.program_id(0) // tiles).to(tl.int64) * HEADS * pair_count
    w = load_weight(MAP, heads, HEADS, DX.dtype.element_ty)
    w2 = load_weight(MAP + (MAPS - 1) * HEADS * (HEADS + 1), heads, HEADS, DX.dtype.element_ty)
    sums = tl.zeros([BLOCK_H, BLOCK_H], tl.float32)
    sums2 = sums
    for index in range(blocks):
        first = (tile * blocks + index) * BLOCK_P
        pairs = first + tl.arange(0, BLOCK_P)
        both = MAPS * first + tl.arange(0, MAPS * BLOCK_P)
        g = load_heads(DOUT + MAPS * start, heads, both, MAPS * pair_count, HEADS)
        x = load_heads(X + start, heads, pairs, pair_count, HEADS)
        # A row of ones, whose product gives sums.
        ones = tl.trans(tl.where((heads == HEADS)[:, None], 1.0, x).to(x.dtype))
        if HAS_SLOPE:
            h = load_heads(OUT + start, heads, pairs, pair_count, HEADS).to(tl.float32)
            g = (g * slope_of(h, PRECISION)).to(x.dtype)
        if MAPS == 2:
            g, g2 = tl.split(tl.reshape(g, [BLOCK_H, BLOCK_P, 2]))
            sums2 += dot(g2, ones, PRECISION == "ieee")
        sums += dot(g, ones, PRECISION == "ieee")
        dx = dot(tl.trans(w), g, PRECISION == "ieee")
        if MAPS == 2:
            dx += dot(tl.trans(w2), g2, PRECISION == "ieee")
        if HAS_ADDED:
            dx += load_heads(ADDED + start, heads, pairs, pair_count, HEADS)
        store_heads(DX + start, heads, pairs, pair_count, dx, HEADS)
    part = MAPS * tl.program_id(0).to(tl.int64)
    store_sums(SUMS, part, heads, sums, HEADS)
    if MAPS == 2:
        store_sums(SUMS, part + 1, heads, sums2, HEADS)


launch_map = Launcher(map_heads)
launch_map_backward = Launcher(map_heads_backward)


def logits_over_heads(h: Tensor, maps: Tensor) -> Tensor:
    """Softplus of one or two maps over heads, interleaved for each pair.

    Args:
        h: The tensor.
        maps: The weights, one below the other, with the bias as the last column.
    """
    batch, heads, n, m = h.shape
    count = len(maps) // heads
    out = h.new_empty(batch, heads, n, count * m)
    launch_map(
        (ceil_div(n * m, PAIRS) * batch, 1),
        (h.contiguous(), maps.contiguous(), out),
        (n * m,),
        {"HEADS": heads, "MAPS": count, "BLOCK_H": block(heads), "BLOCK_P": PAIRS,
         "PRECISION": precision(h.dtype), "num_warps": PAIRS_WARPS},
    )  # fmt: skip
    return out


def logits_over_heads_backward(h: Tensor, maps: Tensor, dlogits: Tensor, dh: Tensor) -> Tensor:
    """Writes the gradient of the tensor, and returns that of the maps in float32.

    Args:
        h: The tensor.
        maps: The maps.
        dlogits: The gradient before softplus.
        dh: Receives that of the tensor; contiguous.
    """
    parts = h.new_empty(shares(h)[0], *maps.shape, dtype=torch.float32)
    backward_into(parts, h, maps, dlogits, dh)
    return parts.sum(0)


def shares(h: Tensor) -> tuple[int, int]:
    """Programs that share the gradients of maps, and the blocks of pairs of each."""
    blocks = ceil_div(h.shape[2] * h.shape[3], SUMMED_PAIRS)
    each = ceil_div(blocks * len(h), PROGRAMS)
    return ceil_div(blocks, each) * len(h), each


def backward_into(
    parts: Tensor, h: Tensor, maps: Tensor, dlogits: Tensor, dh: Tensor,
    logits: Tensor | None = None, added: Tensor | None = None,
) -> None:  # fmt: skip
    """Writes the gradient of the tensor, and that of the maps in parts.

    Args:
        parts: Receives the parts of the gradient of the maps.
        h: The tensor.
        maps: The maps.
        dlogits: The gradient before softplus, or of `logits`.
        dh: Receives the gradient of the tensor; contiguous.
        logits: The result of one map, for whose softplus the gradient is.
        added: Added to the gradient of the tensor.
    """
    heads = h.shape[1]
    out, more = (dh if x is None else x.contiguous() for x in (logits, added))
    launch_map_backward(
        (len(parts), 1),
        (dlogits.contiguous(), out, h.contiguous(), maps.contiguous(), more, dh, parts),
        (h.shape[2] * h.shape[3], shares(h)[1]),
        {"HEADS": heads, "MAPS": len(maps) // heads, "BLOCK_H": block(heads + 1),
         "BLOCK_P": SUMMED_PAIRS, "PRECISION": precision(h.dtype), "HAS_SLOPE": logits is not None,
         "HAS_ADDED": added is not None, "num_warps": SUMMED_WARPS},
    )  # fmt: skip


@Operator
def states_over_heads(top: Tensor, maps: Tensor) -> list[Tensor]:
    """The states that `upward_over_heads` returns."""
    states = [top]
    for each in maps.unbind():
        states.append(logits_over_heads(states[-1], each))
    return states[1:]


@states_over_heads.register_fake
def _(top: Tensor, maps: Tensor) -> list[Tensor]:
    return [top.new_empty(top.shape) for _ in range(maps.shape[0])]


@Operator
def states_over_heads_backward(
    top: Tensor, maps: Tensor, states: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The gradients of the first state, and of the maps in float32."""
    grad, each = grads[-1], maps.unbind()
    parts = top.new_empty(len(each), shares(top)[0], *maps.shape[1:], dtype=torch.float32)
    of_steps = parts.unbind()
    for step in reversed(range(len(each))):
        below, added = (states[step - 1], grads[step - 1]) if step else (top, None)
        dbelow = top.new_empty(top.shape)
        backward_into(of_steps[step], below, each[step], grad, dbelow, states[step], added)
        grad = dbelow
    return grad, parts.sum(1)


@states_over_heads_backward.register_fake
def _(
    top: Tensor, maps: Tensor, states: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    return top.new_empty(top.shape), top.new_empty(maps.shape, dtype=torch.float32)


class UpwardOverHeads(torch.autograd.Function):
    """The states that `states_over_heads` computes, with gradients."""

    @staticmethod
    def forward(ctx: Any, top: Tensor, maps: Tensor) -> tuple[Tensor, ...]:
        """Computes the states, and keeps them."""
        states = states_over_heads(top, maps)
        ctx.save_for_backward(top, maps, *states)
        return tuple(states)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Gradients of the first state and of the maps."""
        top, maps, *states = ctx.saved_tensors
        dtop, dmaps = states_over_heads_backward(top, maps, states, list(grads))
        return dtop, dmaps.to(maps.dtype)


def upward_over_heads(top: Tensor, maps: Tensor) -> list[Tensor]:
    """The states after each step of the upward path, in the precision of `top`.

    Args:
        top: The first state.
        maps: The maps over heads in the order of the steps, with the bias as the last column.
    """
    return list(UpwardOverHeads.apply(top, maps))
