"""The upward path with maps over heads: several of its steps in one kernel, forward and backward.

A step mixes the heads of a query-key pair but no pairs. So a program computes several steps of a
block of pairs while it is in registers.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.heads import (
    PAIRS,
    PAIRS_WARPS,
    SUMMED_PAIRS,
    SUMMED_WARPS,
    Shares,
    load_heads,
    load_weight,
    store_heads,
    store_sums,
    with_ones,
)
from babn.kernels.launch import Launcher, block, operator, precision
from babn.kernels.softmax import weights_backward, weights_of
from babn.kernels.special import LOG2_E, exp2, softplus
from babn.kernels.tiles import dot

STEPS = 3
"""Steps of a kernel; each needs registers for its sums in backward."""

WIDE_FROM = 2**31
"""Elements of an example from which on offsets need 64 bits."""


@triton.jit
def upward_heads(
    X, STATES, WEIGHT, BIAS, pair_count,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, NUM_STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of pairs of one example: the state after each step."""
    pairs = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    heads = tl.arange(0, BLOCK_H)
    start = tl.program_id(1).to(tl.int64) * HEADS * pair_count
    h = load_heads(X + start, heads, pairs, pair_count, HEADS)
    for step in tl.static_range(NUM_STEPS):
        at = WEIGHT + step * HEADS * HEADS
        w = load_weight(at, heads, heads, (HEADS, 1), HEADS, HEADS).to(h.dtype)
        b = tl.load(BIAS + step * HEADS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
        h = softplus(dot(w, h, PRECISION) + b[:, None], PRECISION).to(h.dtype)
        store_heads(STATES[step] + start, heads, pairs, pair_count, h, HEADS)


@triton.jit
def upward_heads_backward(
    X, STATES, GRADS, CARRIED, WEIGHT, DX, SUMS, pair_count, blocks, steps,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, NUM_STEPS: tl.constexpr,
    IS_LAST: tl.constexpr, IS_WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Several blocks of pairs of one example: the gradient of X, and sums for weights and biases.

    GRADS are gradients of the states themselves; CARRIED is the gradient of the last state from
    later steps, unless the last step is among these. SUMS has a place for each of all `steps`.
    """
    heads = tl.arange(0, BLOCK_H)
    start = tl.program_id(1).to(tl.int64) * HEADS * pair_count
    sums = (tl.zeros([BLOCK_H, BLOCK_H], tl.float32),)
    for _ in tl.static_range(NUM_STEPS - 1):
        sums += (tl.zeros([BLOCK_H, BLOCK_H], tl.float32),)
    for block_index in range(blocks):
        pairs = (tl.program_id(0) * blocks + block_index) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        rows = heads.to(tl.int64) if IS_WIDE else heads
        places = rows[:, None] * pair_count + pairs[None, :]
        h = tl.load(STATES[NUM_STEPS - 1] + start + places, inside, other=0.0)
        g = tl.load(GRADS[NUM_STEPS - 1] + start + places, inside, other=0.0).to(tl.float32)
        if not IS_LAST:
            g += tl.load(CARRIED + start + places, inside, other=0.0).to(tl.float32)
        summed = sums
        for step in tl.static_range(NUM_STEPS - 1, -1, -1):
            if step > 0:
                x = tl.load(STATES[step - 1] + start + places, inside, other=0.0)
            else:
                x = tl.load(X + start + places, inside, other=0.0)
            at = WEIGHT + step * HEADS * HEADS
            w = load_weight(at, heads, heads, (HEADS, 1), HEADS, HEADS).to(x.dtype)
            du = (g * slope_of(h.to(tl.float32), PRECISION)).to(x.dtype)
            own_sum = (sums[step] + dot(du, tl.trans(with_ones(x, heads, HEADS)), PRECISION),)
            summed = own_sum if step == NUM_STEPS - 1 else own_sum + summed
            g = dot(tl.trans(w), du, PRECISION)
            if step > 0:
                g += tl.load(GRADS[step - 1] + start + places, inside, other=0.0).to(tl.float32)
            h = x
        sums = summed
        tl.store(DX + start + places, g.to(DX.dtype.element_ty), mask=inside)
    part = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * steps
    for step in tl.static_range(NUM_STEPS):
        store_sums(SUMS, part + step, heads, heads, sums[step], HEADS, HEADS)


@triton.jit
def slope_of(h, PRECISION: tl.constexpr):
    """The slope of softplus in terms of its value h, 1 - e^-h."""
    slope = 1.0 - exp2(-h * LOG2_E)
    if PRECISION:
        slope = tl.where(h < 1e-3, h - 0.5 * h * h, slope)
    return slope


launch_upward = Launcher(upward_heads)
launch_upward_backward = Launcher(upward_heads_backward)


@operator
def upward_over_heads(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    weights: Tensor,
    biases: Tensor,
) -> list[Tensor]:
    """The states after each step of the path, in the precision of the queries.

    The path begins with softmax weights, which backward recomputes instead of storing them.

    Args:
        q: Queries of the first layer.
        k: Its keys.
        mask: Its mask.
        bias: Its bias.
        scale: Factor of its dot products.
        weights: The maps over heads, stacked in the order of the steps.
        biases: Their biases.
    """
    state, states = weights_of(q, k, mask, bias, scale), list[Tensor]()
    batch, heads, n, m = state.shape
    weights, biases = weights.contiguous(), biases.contiguous()
    for first in range(0, len(weights), STEPS):
        taken = tuple(torch.empty_like(state) for _ in weights[first : first + STEPS])
        launch_upward(
            (triton.cdiv(n * m, PAIRS), batch),
            (state, taken, weights[first:], biases[first:]),
            (n * m,),
            HEADS=heads, BLOCK_H=block(heads), BLOCK_P=PAIRS, NUM_STEPS=len(taken),
            PRECISION=precision(state.dtype), num_warps=PAIRS_WARPS,
        )  # fmt: skip
        states += taken
        state = taken[-1]
    return states


@upward_over_heads.register_fake
def _(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float,
    weights: Tensor, biases: Tensor,
) -> list[Tensor]:  # fmt: skip
    return [q.new_empty(*q.shape[:3], k.shape[2]) for _ in range(weights.shape[0])]


@operator
def upward_over_heads_backward(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    weights: Tensor,
    states: Sequence[Tensor],
    grads: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax weights, their gradient, and those of the maps in parts, in float32."""
    steps, heads, _ = weights.shape
    top, weights = weights_of(q, k, mask, bias, scale), weights.contiguous()
    shares = Shares.of(top.shape[0], top.shape[2] * top.shape[3])
    grads, carried = [grad.contiguous() for grad in grads], top
    parts = top.new_empty(shares.parts, steps, heads, heads + 1, dtype=torch.float32)
    for first in reversed(range(0, steps, STEPS)):
        end = min(first + STEPS, steps)
        taken, below = tuple(states[first:end]), states[first - 1] if first else top
        dx = torch.empty_like(top)
        launch_upward_backward(
            shares.grid,
            (below, taken, tuple(grads[first:end]), carried, weights[first:], dx, parts[:, first:]),
            (shares.pairs, shares.blocks, steps),
            HEADS=heads, BLOCK_H=block(heads + 1), BLOCK_P=SUMMED_PAIRS, NUM_STEPS=len(taken),
            IS_LAST=end == steps, IS_WIDE=heads * shares.pairs >= WIDE_FROM,
            PRECISION=precision(top.dtype), num_warps=SUMMED_WARPS,
        )  # fmt: skip
        carried = dx
    return top, carried, parts


@upward_over_heads_backward.register_fake
def _(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float,
    weights: Tensor, states: Sequence[Tensor], grads: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    top = states[0]
    parts = Shares.of(top.shape[0], top.shape[2] * top.shape[3]).parts
    size = parts, *weights.shape[:2], weights.shape[2] + 1
    return torch.empty_like(top), torch.empty_like(top), top.new_empty(size, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k, mask, bias, ctx.scale, weights, biases = inputs
    ctx.bias_dtype = biases.dtype
    ctx.save_for_backward(q, k, mask, bias, weights, *output)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    q, k, mask, bias, weights, *states = ctx.saved_tensors
    own = [torch.zeros_like(states[0]) if grad is None else grad for grad in grads]
    top, dtop, parts = upward_over_heads_backward(q, k, mask, bias, ctx.scale, weights, states, own)
    dq, dk, dbias = weights_backward(top, dtop, q, k, bias, ctx.scale)
    dmaps = parts.sum(0)
    dweights, dbiases = dmaps[..., :-1].to(weights.dtype), dmaps[..., -1].to(ctx.bias_dtype)
    return dq, dk, None, dbias, None, dweights, dbiases


upward_over_heads.register_autograd(_backward, setup_context=_setup)
