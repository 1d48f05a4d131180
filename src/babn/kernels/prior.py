"""The prior's MLP over keys with its softmax, in one kernel forward and one backward.

Its two layers of a dozen units are too small for libraries of matrix products, where each operation
takes a launch.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.flags import LARGE_HEAD
from babn.kernels.launch import (
    CACHED_LAUNCHES,
    Launcher,
    Types,
    block,
    broadcast,
    ceil_div,
    precision,
)
from babn.kernels.posterior import alpha_digamma_of, prior_rest
from babn.kernels.settings import MaskType, Precision, mask_type
from babn.kernels.special import LOG2_E, log2
from babn.kernels.tiles import (
    BOTTOM,
    LOWEST,
    at_head,
    dot,
    keys_seen,
    load_mlp,
    load_rows,
    store_rows,
)

KEYS, WARPS = 64, 4
"""Keys in a block, and warps of its program."""

SHARE = 256
"""Keys of a program of the backward kernel."""

FEW_PARTS = 16
"""Parts of the gradient of the shapes that the backward kernel still sums itself."""


@dataclass(frozen=True)
class MlpFlags:
    """What the kernels of the prior are compiled for."""

    HEAD_DIM: int
    BLOCK_D: int
    HIDDEN: int
    BLOCK_H: int
    BLOCK_N: int
    SHARE: int
    HAS_MASK: bool
    IS_NORMALIZED: bool
    PRECISION: Precision


@triton.jit
def load_network(NETWORK, columns, units, TYPE: tl.constexpr, C: tl.constexpr):
    """Weights of the two layers and the first bias; the first weight in the type TYPE."""
    B1 = NETWORK + C.HIDDEN * C.HEAD_DIM
    w1, b1, w2 = load_mlp(NETWORK, B1, B1 + C.HIDDEN, columns, units, C.HEAD_DIM, C.HIDDEN)
    return w1.to(TYPE), b1, w2


@triton.jit
def read_keys(inputs, strides, heads, m, prior_start, C: tl.constexpr):
    """All keys of one head of one example: writes shapes to STATS, and their part of the KL."""
    BLOCK_N: tl.constexpr = C.BLOCK_N
    K, NETWORK, MASK, STATS = inputs
    k_strides, mask_strides = strides
    plane = tl.program_id(0)
    batch, head = plane // heads, plane % heads
    columns, units = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_H)
    K = at_head(K, k_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    REST = STATS + prior_start + tl.num_programs(0).to(tl.int64) * m
    OUT = STATS + prior_start + plane.to(tl.int64) * m
    # As torch multiplies under autocast; float16 lacks the range for gradients.
    TYPE: tl.constexpr = tl.bfloat16 if K.dtype.element_ty == tl.bfloat16 else tl.float32
    w1, b1, w2 = load_network(NETWORK, columns, units, TYPE, C)
    b2 = tl.load(NETWORK + C.HIDDEN * (C.HEAD_DIM + 2)).to(tl.float32)
    top = tl.full([1], BOTTOM, tl.float32)
    total = tl.zeros([1], tl.float32)
    for start in range(0, m, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, False).to(TYPE)
        hidden = tl.maximum(dot(k, tl.trans(w1), C.PRECISION == "ieee") + b1[None, :], 0.0)
        value = tl.sum(hidden * w2[None, :], 1) + b2
        tl.store(OUT + keys, value, mask=keys < m)
        if C.IS_NORMALIZED:
            seen = keys_seen(MASK, keys, m, mask_strides[3], C.HAS_MASK)
            value = tl.where(seen, value * LOG2_E, LOWEST)
            higher = tl.maximum(top, tl.max(value, 0, keep_dims=True))
            total = total * tl.exp2(top - higher) + tl.sum(
                tl.exp2(value - higher), 0, keep_dims=True
            )
            top = higher
    if C.IS_NORMALIZED:
        lse = top + log2(total)
        rest = tl.zeros([BLOCK_N], tl.float32)
        for start in range(0, m, C.BLOCK_N):
            keys = start + tl.arange(0, C.BLOCK_N)
            seen = keys_seen(MASK, keys, m, mask_strides[3], C.HAS_MASK)
            log_shape = tl.load(OUT + keys, mask=keys < m, other=0.0) * LOG2_E - lse
            shape = tl.exp2(log_shape)
            tl.store(OUT + keys, tl.where(seen, shape, 0.0), mask=keys < m)
            rest += tl.where(seen, prior_rest(shape, log_shape), 0.0)
        tl.store(REST + plane + tl.arange(0, 1), tl.sum(rest, 0, keep_dims=True))


@triton.jit
def total_weight(DKL, strides, batch, head, groups, n, C: tl.constexpr):
    """The sum of the gradients of the KL over all rows that share a head of keys."""
    BLOCK_N: tl.constexpr = C.BLOCK_N
    total = tl.zeros([BLOCK_N], tl.float32)
    for group in range(groups):
        HEAD = at_head(DKL, strides, batch, head * groups + group)
        for start in range(0, n, C.BLOCK_N):
            rows = start + tl.arange(0, C.BLOCK_N)
            total += tl.load(HEAD + rows * strides[2], mask=rows < n, other=0.0)
    return tl.sum(total, 0, keep_dims=True)


@triton.jit
def gradient_of_logs(PRIOR, DPRIOR, parts, keys, seen, m, weight, C: tl.constexpr):
    """The shapes and the gradient of their logarithms; of outputs of the MLP, their gradient."""
    shape = tl.load(PRIOR + keys, mask=seen, other=0.0)
    slope = tl.zeros_like(shape)
    for part in range(parts):
        slope += tl.load(DPRIOR + part * m + keys, mask=seen, other=0.0)
    if C.IS_NORMALIZED:
        slope = tl.where(seen, shape * slope + weight * alpha_digamma_of(shape), 0.0)
    return shape, slope


@triton.jit
def read_keys_backward(inputs, grads, outputs, strides, sizes, C: tl.constexpr):
    """Some keys of one head of one example: adds to their gradient, and sums for the weights.

    With normalised shapes, DPRIOR is the contribution of pairs to their gradient, in parts. The
    rest is a function of the shape times the total weight of the KL over all rows.
    """
    BLOCK_D: tl.constexpr = C.BLOCK_D
    BLOCK_H: tl.constexpr = C.BLOCK_H
    K, NETWORK, MASK, STATS = inputs
    DPRIOR, DKL = grads
    DK, SUMS = outputs
    k_strides, dk_strides, mask_strides, dkl_strides = strides
    heads, groups, n, m, prior_start, parts = sizes
    plane, place = tl.program_id(0), tl.program_id(1)
    batch, head = plane // heads, plane % heads
    columns, units = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_H)
    K = at_head(K, k_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    DK = at_head(DK, dk_strides, batch, head)
    PRIOR = STATS + prior_start + plane.to(tl.int64) * m
    DPRIOR += plane.to(tl.int64) * parts * m
    TYPE: tl.constexpr = tl.bfloat16 if K.dtype.element_ty == tl.bfloat16 else tl.float32
    w1, b1, w2 = load_network(NETWORK, columns, units, TYPE, C)
    weight = tl.zeros([1], tl.float32)
    total = tl.zeros([1], tl.float32)
    if C.IS_NORMALIZED:
        weight = total_weight(DKL, dkl_strides, batch, head, groups, n, C)
        for start in range(0, m, C.BLOCK_N):
            keys = start + tl.arange(0, C.BLOCK_N)
            seen = keys_seen(MASK, keys, m, mask_strides[3], C.HAS_MASK)
            _, slope = gradient_of_logs(PRIOR, DPRIOR, parts, keys, seen, m, weight, C)
            total += tl.sum(slope, 0, keep_dims=True)
    dw1 = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    db1 = tl.zeros([BLOCK_H], tl.float32)
    dw2 = tl.zeros([BLOCK_H], tl.float32)
    db2 = tl.zeros([1], tl.float32)
    for start in range(place * C.SHARE, tl.minimum(m, (place + 1) * C.SHARE), C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, False).to(TYPE)
        dk = load_rows(DK, keys, columns, dk_strides[2], m, C.HEAD_DIM, C.BLOCK_D, False)
        seen = keys_seen(MASK, keys, m, mask_strides[3], C.HAS_MASK)
        shape, dvalue = gradient_of_logs(PRIOR, DPRIOR, parts, keys, seen, m, weight, C)
        if C.IS_NORMALIZED:
            dvalue -= shape * total
        before = dot(k, tl.trans(w1), C.PRECISION == "ieee") + b1[None, :]
        dw2 += tl.sum(tl.maximum(before, 0.0) * dvalue[:, None], 0)
        db2 += tl.sum(dvalue, 0, keep_dims=True)
        dbefore = tl.where(before > 0, dvalue[:, None] * w2[None, :], 0.0)
        db1 += tl.sum(dbefore, 0)
        dbefore = dbefore.to(TYPE)
        dw1 += dot(tl.trans(dbefore), k, C.PRECISION == "ieee")
        total_dk = dk.to(tl.float32) + dot(dbefore, w1, C.PRECISION == "ieee")
        store_rows(DK, keys, columns, dk_strides[2], m, total_dk, C.HEAD_DIM)
    inside = (units < C.HIDDEN)[:, None] & (columns < C.HEAD_DIM)[None, :]
    SUMS += (plane * tl.num_programs(1) + place) * (C.HIDDEN * (C.HEAD_DIM + 2) + 1)
    tl.store(SUMS + units[:, None] * C.HEAD_DIM + columns[None, :], dw1, mask=inside)
    tl.store(SUMS + C.HIDDEN * C.HEAD_DIM + units, db1, mask=units < C.HIDDEN)
    tl.store(SUMS + C.HIDDEN * (C.HEAD_DIM + 1) + units, dw2, mask=units < C.HIDDEN)
    tl.store(SUMS + C.HIDDEN * (C.HEAD_DIM + 2) + tl.arange(0, 1), db2)


launch_read = Launcher(read_keys)
launch_read_backward = Launcher(read_keys_backward)


@lru_cache(CACHED_LAUNCHES)
def _options(size: int, d: int, width: int, mask: MaskType, products: Precision) -> dict[str, Any]:
    """Sizes of the MLP; the softmax is left to the rows where queries see different keys."""
    hidden = (size - 1) // (d + 2)
    flags = MlpFlags(
        HEAD_DIM=d,
        BLOCK_D=block(d),
        HIDDEN=hidden,
        BLOCK_H=block(hidden),
        BLOCK_N=KEYS // 2 if block(d) * width >= LARGE_HEAD else KEYS,
        SHARE=SHARE,
        HAS_MASK=mask == "keys",
        IS_NORMALIZED=mask != "pairs",
        PRECISION=products,
    )
    return {"C": flags, "num_warps": WARPS}


def options_of(key: Tensor, network: Tensor, mask: Tensor | None) -> dict[str, Any]:
    """Flags and compile options of the kernels of the prior in a call."""
    return _options(
        network.shape[0], key.shape[3], key.element_size(), mask_type(mask), precision(key.dtype)
    )


def prior_of_keys(
    key: Tensor, network: Tensor, mask: Tensor | None, stats: Tensor, start: int,
    types: Types = (),
) -> None:  # fmt: skip
    """Writes the prior's shapes, zero at masked keys, and behind them their part of each row's KL.

    If queries see different keys, the outputs of the MLP before the softmax.

    Args:
        key: The keys of each head, the last axis contiguous.
        network: Weight and bias of the first layer and of the second, concatenated.
        mask: The mask of the call.
        stats: The tensor to write to, in float32.
        start: Index of the first shape.
        types: Types of the tensors, as launches take them.
    """
    batch, heads, m, _ = key.shape
    seen, strides = broadcast(mask, key)
    launch_read(
        (batch * heads, 1),
        ((key, network, seen, stats),),
        ((key.stride(), strides), heads, m, start),
        options_of(key, network, mask),
        types,
    )  # fmt: skip


def prior_of_keys_backward(
    key: Tensor, network: Tensor, mask: Tensor | None, stats: Tensor, start: int,
    dprior: Tensor, dkl: Tensor, dkey: Tensor, types: Types = (),
) -> Tensor:  # fmt: skip
    """Adds to the gradient of keys, and returns that of the MLP.

    Args:
        key: The keys of each head.
        network: Weights and biases of the MLP.
        mask: The mask of the call.
        stats: What `prior_of_keys` wrote to.
        start: Index of the first shape.
        dprior: For each head of queries parts that are to be added: of the gradient of what the
            layers give, or where that is normalised, of what pairs add to the shapes' own.
        dkl: The gradient of the KL of each head's rows.
        dkey: The gradient of keys.
        types: Types of the tensors, as launches take them.
    """
    batch, heads, m, _ = key.shape
    groups = dkl.shape[1] // heads
    parts = groups * dprior.shape[2]
    if parts > FEW_PARTS:
        dprior, parts = dprior.view(batch, heads, parts, m).sum(2), 1
    grid = batch * heads, ceil_div(m, SHARE)
    sums = dprior.new_empty(grid[0] * grid[1], network.shape[0])
    seen, strides = broadcast(mask, key)
    launch_read_backward(
        grid,
        ((key, network, seen, stats), (dprior, dkl), (dkey, sums)),
        ((key.stride(), dkey.stride(), strides, dkl.stride()),
         (heads, groups, dkl.shape[2], m, start, parts)),
        options_of(key, network, mask),
        types,
    )  # fmt: skip
    return sums.sum(0)
