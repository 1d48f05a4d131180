"""The upward path with maps over keys: products of matrices with softplus or its slope as epilogue.

A step reads a state and writes the next. In backward the gradient of a state, from its shape and
scale logits and from the next step, is one sum of products. Measured on one H200 against products
by torch: 19.6 ms in place of 21.8 at 512 keys, 1.19 in place of 1.40 at 128.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from babn.kernels.launch import Launcher, Pairs, block, operator, precision
from babn.kernels.special import softplus
from babn.kernels.tiles import dot
from babn.kernels.upward_heads import slope_of

ALIGNED = 8
"""The number of keys must be a multiple of this: rows in half precision align to 16 bytes."""

LARGEST_BLOCK = 128
"""An example must have at least this many rows if there is a mask."""

MOST_KEYS = 512
"""Longer products are left to torch, which is faster at 2048 keys."""


@triton.jit
def add_product(
    total, X, WEIGHT, row, column, size,
    BLOCK_K: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds a block of the product of X and a weight or its transpose."""
    for at in range(0, size, BLOCK_K):
        x = X.load([row, at])
        if TRANSPOSED:
            total += dot(x, WEIGHT.load([column, at]).T, PRECISION)
        else:
            total += dot(x, WEIGHT.load([at, column]), PRECISION)
    return total


@triton.jit
def step_over_keys(
    BIAS, MASK, X, WEIGHT, OUT, mask_strides, rows_of_example, last_example, keys,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_MASK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of a state: softplus of a map of the previous one, zero at masked keys."""
    blocks = tl.cdiv(keys, BLOCK_N)
    row, column = tl.program_id(0) // blocks * BLOCK_M, tl.program_id(0) % blocks * BLOCK_N
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = add_product(total, X, WEIGHT, row, column, keys, BLOCK_K, True, PRECISION)
    columns = column + tl.arange(0, BLOCK_N)
    bias = tl.load(BIAS + columns, mask=columns < keys, other=0.0).to(tl.float32)
    value = softplus(total + bias[None, :], PRECISION)
    if HAS_MASK:
        # The rows of a block belong to one example or to two.
        example = row // rows_of_example
        at = MASK + columns * mask_strides[3]
        first = tl.load(at + example * mask_strides[0], mask=columns < keys, other=0) != 0
        example = tl.minimum(example + 1, last_example)
        second = tl.load(at + example * mask_strides[0], mask=columns < keys, other=0) != 0
        of_first = row % rows_of_example + tl.arange(0, BLOCK_M) < rows_of_example
        seen = tl.where(of_first[:, None], first[None, :], second[None, :])
        value = tl.where(seen, value, 0.0)
    OUT.store([row, column], value.to(OUT.dtype))


@triton.jit
def step_over_keys_backward(
    SUMS, DLOGITS, LOGITS_WEIGHT, DNEXT, NEXT_WEIGHT, STATE, OUT, keys, width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_LAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of the gradient before softplus, and sums over its rows for the biases.

    The gradient comes from the logits, and from the next step unless this one IS_LAST. The programs
    of a block of rows share the sums over the logits.
    """
    blocks = tl.cdiv(keys, BLOCK_N)
    row_block, column_block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    row, column = row_block * BLOCK_M, column_block * BLOCK_N
    SUMS += row_block.to(tl.int64) * (keys + width)
    for at in tl.range(column_block * BLOCK_K, width, blocks * BLOCK_K, num_stages=3):
        columns = at + tl.arange(0, BLOCK_K)
        part = tl.sum(DLOGITS.load([row, at]).to(tl.float32), 0)
        tl.store(SUMS + keys + columns, part, mask=columns < width)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    total = add_product(
        total, DLOGITS, LOGITS_WEIGHT, row, column, width, BLOCK_K, False, PRECISION
    )
    if not IS_LAST:
        total = add_product(total, DNEXT, NEXT_WEIGHT, row, column, keys, BLOCK_K, False, PRECISION)
    total *= slope_of(STATE.load([row, column]).to(tl.float32), PRECISION)
    OUT.store([row, column], total.to(OUT.dtype))
    columns = column + tl.arange(0, BLOCK_N)
    tl.store(SUMS + columns, tl.sum(total, 0), mask=columns < keys)


launch_step = Launcher(step_over_keys)
launch_step_backward = Launcher(step_over_keys_backward)


def rows_for(keys: int) -> int:
    """The rows of a block."""
    return LARGEST_BLOCK if keys > 128 else 64


def blocks_for(keys: int) -> dict[str, int]:
    """The block of a product, and compile options."""
    size = block(keys)
    blocks = {"BLOCK_M": rows_for(keys), "BLOCK_N": min(size, 128), "BLOCK_K": min(size, 64)}
    return {**blocks, "num_warps": 4, "num_stages": 3}


def _described(x: Tensor, rows: int, columns: int) -> Any:
    """A descriptor of a matrix, from which kernels load blocks of this size."""
    return TensorDescriptor.from_tensor(x, [rows, columns])


def _step(
    state: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, shape: torch.Size
) -> Tensor:
    """The next state; states are matrices with a row for each query."""
    (count, keys), out, how = state.shape, torch.empty_like(state), blocks_for(state.shape[1])
    pairs = Pairs.of(state.view(shape), keys, mask, None)
    launch_step(
        (triton.cdiv(count, how["BLOCK_M"]) * triton.cdiv(keys, how["BLOCK_N"]), 1),
        (bias, pairs.mask, _described(state, how["BLOCK_M"], how["BLOCK_K"]),
         _described(weight, how["BLOCK_N"], how["BLOCK_K"]),
         _described(out, how["BLOCK_M"], how["BLOCK_N"])),
        (pairs.mask_strides, shape[1] * shape[2], shape[0] - 1, keys),
        **how, HAS_MASK=mask is not None, PRECISION=precision(state.dtype),
    )  # fmt: skip
    return out


@operator
def upward_over_keys(
    top: Tensor, weights: Tensor, biases: Tensor, mask: Tensor | None
) -> list[Tensor]:
    """The states after each step of the path, in the precision of `top`; without gradients.

    Args:
        top: The first state, zero at masked keys.
        weights: The maps over keys in the order of the steps, stacked, in the same precision.
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
    logits_weights: Tensor,
    logits_biases: Tensor,
    mask: Tensor | None,
) -> list[Tensor]:
    """Shape and scale logits of each state, interleaved by key, and the states.

    Args:
        top: The first state, zero at masked keys.
        weights: The maps over keys in the order of the steps, stacked, in the same precision.
        biases: Their biases.
        logits_weights: For each state the map to its logits.
        logits_biases: Their biases.
        mask: The keys that take part, one row for all queries and heads.
    """
    state, states, logits = top.reshape(-1, top.shape[3]), list[Tensor](), list[Tensor]()
    maps = (weights.contiguous(), biases, logits_weights, logits_biases)
    for weight, bias, logits_weight, logits_bias in zip(*maps, strict=True):
        state = _step(state, weight, bias, mask, top.shape)
        width = torch.addmm(logits_bias, state, logits_weight.t())
        logits.append(width.view(*top.shape[:3], -1))
        states.append(state.view(top.shape))
    return [*logits, *states]


@upward_logits_over_keys.register_fake
def _(
    top: Tensor, weights: Tensor, biases: Tensor, logits_weights: Tensor, logits_biases: Tensor,
    mask: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    steps, width = logits_biases.shape
    logits = [top.new_empty(*top.shape[:3], width) for _ in range(steps)]
    return logits + [top.new_empty(top.shape) for _ in range(steps)]


@operator
def upward_logits_over_keys_backward(
    top: Tensor,
    weights: Tensor,
    logits_weights: Tensor,
    states: Sequence[Tensor],
    dlogits: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the first state, of both kinds of weights, and of all biases in parts."""
    keys, width = top.shape[3], logits_weights.shape[1]
    below = [x.reshape(-1, keys) for x in (top, *states)]
    count, how = len(below[0]), blocks_for(keys)
    row_blocks = triton.cdiv(count, how["BLOCK_M"])
    weights, logits_weights = weights.contiguous(), logits_weights.contiguous()
    dweights, dlogitweights = torch.empty_like(weights), torch.empty_like(logits_weights)
    sums = top.new_empty(len(weights), row_blocks, keys + width, dtype=torch.float32)
    dnext = next_weight = below[0]  # not read by the last step
    for step in reversed(range(len(weights))):
        state, dlogit = below[step + 1], dlogits[step].reshape(-1, width)
        dstate = torch.empty_like(state)
        launch_step_backward(
            (row_blocks * triton.cdiv(keys, how["BLOCK_N"]), 1),
            (sums[step], _described(dlogit, how["BLOCK_M"], how["BLOCK_K"]),
             _described(logits_weights[step], how["BLOCK_K"], how["BLOCK_N"]),
             _described(dnext, how["BLOCK_M"], how["BLOCK_K"]),
             _described(next_weight, how["BLOCK_K"], how["BLOCK_N"]),
             _described(state, how["BLOCK_M"], how["BLOCK_N"]),
             _described(dstate, how["BLOCK_M"], how["BLOCK_N"])),
            (keys, width),
            **how, IS_LAST=step == len(weights) - 1, PRECISION=precision(top.dtype),
        )  # fmt: skip
        torch.mm(dlogit.t(), state, out=dlogitweights[step])
        torch.mm(dstate.t(), below[step], out=dweights[step])
        dnext, next_weight = dstate, weights[step]
    return (dnext @ next_weight).view(top.shape), dweights, dlogitweights, sums


@upward_logits_over_keys_backward.register_fake
def _(
    top: Tensor, weights: Tensor, logits_weights: Tensor, states: Sequence[Tensor],
    dlogits: Sequence[Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    steps, width, keys = logits_weights.shape
    row_blocks = triton.cdiv(top.shape[0] * top.shape[1] * top.shape[2], rows_for(keys))
    return (
        top.new_empty(top.shape),
        weights.new_empty(weights.shape),
        logits_weights.new_empty(logits_weights.shape),
        top.new_empty(steps, row_blocks, keys + width, dtype=torch.float32),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    top, weights, biases, logits_weights, _, _ = inputs
    ctx.bias_dtype = biases.dtype
    ctx.save_for_backward(top, weights, logits_weights, *output[len(weights) :])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    top, weights, logits_weights, *states = ctx.saved_tensors
    size = (*top.shape[:3], logits_weights.shape[1])
    own = [top.new_zeros(size) if g is None else g for g in grads[: len(states)]]
    dtop, dweights, dlogitweights, parts = upward_logits_over_keys_backward(
        top, weights, logits_weights, states, own
    )
    sums = parts.sum(1).to(ctx.bias_dtype)
    dbiases, dlogitbiases = sums.split([top.shape[3], logits_weights.shape[1]], 1)
    return dtop, dweights, dbiases, dlogitweights, dlogitbiases, None


upward_logits_over_keys.register_autograd(_backward, setup_context=_setup)
