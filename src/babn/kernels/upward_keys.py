"""The upward path with maps over keys: products of matrices that softplus and its slope end.

A step reads a state and writes the next, and nothing between them. On the way back the gradient of
a state, which its maps to shape and scale and the next step send to it, is one sum of products.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from babn.kernels.launch import Launcher, Pairs, digits, operator
from babn.kernels.special import softplus
from babn.kernels.tiles import dot
from babn.kernels.upward_heads import slope_of

ALIGNED = 8
"""The number of keys must be a multiple of this: rows in half precision begin at 16 bytes."""

LARGEST_BLOCK = 128
"""An example must have this many rows if there is a mask."""

MOST_KEYS = 512
"""Longer products are left to libraries, which have the better ones at 2048 keys."""


@triton.jit
def add_product(
    total, X, WEIGHT, row, column, size,
    BK: tl.constexpr, TRANSPOSED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Adds a block of the product of X and a weight, which may have to be transposed."""
    for at in range(0, size, BK):
        x = X.load([row, at])
        if TRANSPOSED:
            total += dot(x, WEIGHT.load([column, at]).T, IEEE)
        else:
            total += dot(x, WEIGHT.load([at, column]), IEEE)
    return total


@triton.jit
def step_over_keys(
    BIAS, MASK, X, WEIGHT, OUT, mask_strides, rows_of_example, last_example, keys,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MASKED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One block of a state: softplus of a map of the one below, zero at masked keys."""
    blocks = tl.cdiv(keys, BN)
    row, column = tl.program_id(0) // blocks * BM, tl.program_id(0) % blocks * BN
    total = tl.zeros([BM, BN], tl.float32)
    total = add_product(total, X, WEIGHT, row, column, keys, BK, True, IEEE)
    columns = column + tl.arange(0, BN)
    bias = tl.load(BIAS + columns, mask=columns < keys, other=0.0).to(tl.float32)
    value = softplus(total + bias[None, :], IEEE)
    if MASKED:
        # The rows of a block are of one example, or of two.
        example = row // rows_of_example
        at = MASK + columns * mask_strides[3]
        first = tl.load(at + example * mask_strides[0], mask=columns < keys, other=0) != 0
        example = tl.minimum(example + 1, last_example)
        second = tl.load(at + example * mask_strides[0], mask=columns < keys, other=0) != 0
        of_first = row % rows_of_example + tl.arange(0, BM) < rows_of_example
        seen = tl.where(of_first[:, None], first[None, :], second[None, :])
        value = tl.where(seen, value, 0.0)
    OUT.store([row, column], value.to(OUT.dtype))


@triton.jit
def step_over_keys_backward(
    SUMS, DLIFT, LIFT_WEIGHT, DNEXT, NEXT_WEIGHT, STATE, OUT, keys, lifted,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, LAST: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One block of the gradient before softplus, and sums over its rows for the biases.

    It comes from what the state is lifted to, and from the next step unless this is the LAST. The
    programs of a block of rows share the sums over what it is lifted to.
    """
    blocks = tl.cdiv(keys, BN)
    row_block, column_block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    row, column = row_block * BM, column_block * BN
    SUMS += row_block.to(tl.int64) * (keys + lifted)
    for at in tl.range(column_block * BK, lifted, blocks * BK, num_stages=3):
        columns = at + tl.arange(0, BK)
        part = tl.sum(DLIFT.load([row, at]).to(tl.float32), 0)
        tl.store(SUMS + keys + columns, part, mask=columns < lifted)
    total = tl.zeros([BM, BN], tl.float32)
    total = add_product(total, DLIFT, LIFT_WEIGHT, row, column, lifted, BK, False, IEEE)
    if not LAST:
        total = add_product(total, DNEXT, NEXT_WEIGHT, row, column, keys, BK, False, IEEE)
    total *= slope_of(STATE.load([row, column]).to(tl.float32), IEEE)
    OUT.store([row, column], total.to(OUT.dtype))
    columns = column + tl.arange(0, BN)
    tl.store(SUMS + columns, tl.sum(total, 0), mask=columns < keys)


launch_step = Launcher(step_over_keys)
launch_step_backward = Launcher(step_over_keys_backward)


def rows_for(keys: int) -> int:
    """The rows of a block."""
    return LARGEST_BLOCK if keys > 128 else 64


def blocks_for(keys: int) -> dict[str, int]:
    """The block of a product, and how a kernel works on it."""
    size = max(16, triton.next_power_of_2(keys))
    block = {"BM": rows_for(keys), "BN": min(size, 128), "BK": min(size, 64)}
    return {**block, "num_warps": 4, "num_stages": 3}


def _described(x: Tensor, rows: int, columns: int) -> Any:
    """A matrix of which kernels take blocks of this size."""
    return TensorDescriptor.from_tensor(x, [rows, columns])


def _step(
    state: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, shape: torch.Size
) -> Tensor:
    """The next state; states are matrices with a row for each query."""
    (count, keys), out, how = state.shape, torch.empty_like(state), blocks_for(state.shape[1])
    pairs = Pairs.of(state.view(shape), keys, mask, None)
    launch_step(
        (triton.cdiv(count, how["BM"]) * triton.cdiv(keys, how["BN"]), 1),
        (bias, pairs.mask, _described(state, how["BM"], how["BK"]),
         _described(weight, how["BN"], how["BK"]), _described(out, how["BM"], how["BN"])),
        (pairs.mask_strides, shape[1] * shape[2], shape[0] - 1, keys),
        **how, MASKED=mask is not None, IEEE=digits(state.dtype),
    )  # fmt: skip
    return out


@operator
def upward_over_keys(
    top: Tensor, weights: Tensor, biases: Tensor, mask: Tensor | None
) -> list[Tensor]:
    """The states after each step of the path, in the precision of `top`; without gradients.

    Args:
        top: Where the path begins, zero at masked keys.
        weights: The steps' maps over keys, one after the other, in the same precision.
        biases: Their biases.
        mask: The keys that take part, one row for all queries and heads.
    """
    state, states = top.reshape(-1, top.shape[3]), list[Tensor]()
    for weight, bias in zip(weights.contiguous(), biases, strict=True):
        state = _step(state, weight, bias, mask, top.shape)
        states.append(state.view(top.shape))
    return states


@upward_over_keys.register_fake
def _(top: Tensor, weights: Tensor, biases: Tensor, mask: Tensor | None) -> list[Tensor]:
    return [top.new_empty(top.shape) for _ in range(weights.shape[0])]


@operator
def upward_logits_over_keys(
    top: Tensor,
    weights: Tensor,
    biases: Tensor,
    lift_weights: Tensor,
    lift_biases: Tensor,
    mask: Tensor | None,
) -> list[Tensor]:
    """What further maps make of each state, and the states.

    Args:
        top: Where the path begins, zero at masked keys.
        weights: The steps' maps over keys, one after the other, in the same precision.
        biases: Their biases.
        lift_weights: For each state the map to shape and scale.
        lift_biases: Their biases.
        mask: The keys that take part, one row for all queries and heads.
    """
    state, states, lifts = top.reshape(-1, top.shape[3]), list[Tensor](), list[Tensor]()
    maps = (weights.contiguous(), biases, lift_weights, lift_biases)
    for weight, bias, lift_weight, lift_bias in zip(*maps, strict=True):
        state = _step(state, weight, bias, mask, top.shape)
        lifted = torch.addmm(lift_bias, state, lift_weight.t())
        lifts.append(lifted.view(*top.shape[:3], -1))
        states.append(state.view(top.shape))
    return [*lifts, *states]


@upward_logits_over_keys.register_fake
def _(
    top: Tensor, weights: Tensor, biases: Tensor, lift_weights: Tensor, lift_biases: Tensor,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    steps, lifted = lift_biases.shape
    lifts = [top.new_empty(*top.shape[:3], lifted) for _ in range(steps)]
    return lifts + [top.new_empty(top.shape) for _ in range(steps)]


@operator
def upward_logits_over_keys_backward(
    top: Tensor,
    weights: Tensor,
    lift_weights: Tensor,
    states: Sequence[Tensor],
    dlifts: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the beginning, of weights of steps and lifts, and of all biases in parts."""
    keys, lifted = top.shape[3], lift_weights.shape[1]
    below = [x.reshape(-1, keys) for x in (top, *states)]
    count, how = len(below[0]), blocks_for(keys)
    row_blocks = triton.cdiv(count, how["BM"])
    weights, lift_weights = weights.contiguous(), lift_weights.contiguous()
    dweights, dlift_weights = torch.empty_like(weights), torch.empty_like(lift_weights)
    sums = top.new_empty(len(weights), row_blocks, keys + lifted, dtype=torch.float32)
    dnext = next_weight = below[0]  # not read by the last step
    for step in reversed(range(len(weights))):
        state, dlift = below[step + 1], dlifts[step].reshape(-1, lifted)
        dstate = torch.empty_like(state)
        launch_step_backward(
            (row_blocks * triton.cdiv(keys, how["BN"]), 1),
            (sums[step], _described(dlift, how["BM"], how["BK"]),
             _described(lift_weights[step], how["BK"], how["BN"]),
             _described(dnext, how["BM"], how["BK"]),
             _described(next_weight, how["BK"], how["BN"]),
             _described(state, how["BM"], how["BN"]), _described(dstate, how["BM"], how["BN"])),
            (keys, lifted),
            **how, LAST=step == len(weights) - 1, IEEE=digits(top.dtype),
        )  # fmt: skip
        torch.mm(dlift.t(), state, out=dlift_weights[step])
        torch.mm(dstate.t(), below[step], out=dweights[step])
        dnext, next_weight = dstate, weights[step]
    return (dnext @ next_weight).view(top.shape), dweights, dlift_weights, sums


@upward_logits_over_keys_backward.register_fake
def _(
    top: Tensor, weights: Tensor, lift_weights: Tensor, states: Sequence[Tensor],
    dlifts: Sequence[Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    steps, lifted, keys = lift_weights.shape
    row_blocks = triton.cdiv(top.shape[0] * top.shape[1] * top.shape[2], rows_for(keys))
    return (
        top.new_empty(top.shape),
        weights.new_empty(weights.shape),
        lift_weights.new_empty(lift_weights.shape),
        top.new_empty(steps, row_blocks, keys + lifted, dtype=torch.float32),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    top, weights, biases, lift_weights, _, _ = inputs
    ctx.bias_dtype = biases.dtype
    ctx.save_for_backward(top, weights, lift_weights, *output[len(weights) :])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    top, weights, lift_weights, *states = ctx.saved_tensors
    size = (*top.shape[:3], lift_weights.shape[1])
    own = [top.new_zeros(size) if g is None else g for g in grads[: len(states)]]
    dtop, dweights, dlift_weights, parts = upward_logits_over_keys_backward(
        top, weights, lift_weights, states, own
    )
    sums = parts.sum(1).to(ctx.bias_dtype)
    dbiases, dlift_biases = sums.split([top.shape[3], lift_weights.shape[1]], 1)
    return dtop, dweights, dbiases, dlift_weights, dlift_biases, None


upward_logits_over_keys.register_autograd(_backward, setup_context=_setup)
