"""The prior's MLP over keys with its softmax, in one kernel forward and one backward.

Its two layers of a dozen units are too small for libraries of matrix products, where each operation
takes a launch.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import LARGE_HEAD, Launcher, block, precision
from babn.kernels.posterior import alpha_digamma_of, prior_rest
from babn.kernels.settings import MaskType, mask_type
from babn.kernels.special import LOG2_E, log2
from babn.kernels.tiles import BOTTOM, LOWEST, at_head, dot, keys_seen, load_rows, store_rows

KEYS, WARPS = 64, 4
"""Keys in a block, and warps of its program."""

SHARE = 256
"""Keys of a program of the backward kernel."""


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
    PRECISION: int


@triton.jit
def load_network(W1, B1, W2, columns, units, TYPE: tl.constexpr, C: tl.constexpr):
    """Weights of the two layers, zero beyond their sizes; that of the first in the type TYPE."""
    inside = (units < C.HIDDEN)[:, None] & (columns < C.HEAD_DIM)[None, :]
    w1 = tl.load(W1 + units[:, None] * C.HEAD_DIM + columns[None, :], mask=inside, other=0.0)
    b1 = tl.load(B1 + units, mask=units < C.HIDDEN, other=0.0)
    w2 = tl.load(W2 + units, mask=units < C.HIDDEN, other=0.0)
    return w1.to(TYPE), b1.to(tl.float32), w2.to(tl.float32)


@triton.jit
def read_keys(inputs, outputs, strides, heads, m, C: tl.constexpr):
    """All keys of one head of one example."""
    BLOCK_N: tl.constexpr = C.BLOCK_N
    K, W1, B1, W2, B2, MASK = inputs
    OUT, REST = outputs
    k_strides, mask_strides = strides
    plane = tl.program_id(0)
    batch, head = plane // heads, plane % heads
    columns, units = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_H)
    K = at_head(K, k_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    OUT += plane.to(tl.int64) * m
    # As torch multiplies under autocast; float16 lacks the range for gradients.
    TYPE: tl.constexpr = tl.bfloat16 if K.dtype.element_ty == tl.bfloat16 else tl.float32
    w1, b1, w2 = load_network(W1, B1, W2, columns, units, TYPE, C)
    b2 = tl.load(B2).to(tl.float32)
    top = tl.full([1], BOTTOM, tl.float32)
    total = tl.zeros([1], tl.float32)
    for start in range(0, m, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, False).to(TYPE)
        hidden = tl.maximum(dot(k, tl.trans(w1), C.PRECISION) + b1[None, :], 0.0)
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
def gradient_of_logs(PRIOR, DPRIOR, keys, seen, weight, C: tl.constexpr):
    """The shapes and the gradient of their logarithms; of outputs of the MLP, their gradient."""
    shape = tl.load(PRIOR + keys, mask=seen, other=0.0)
    slope = tl.load(DPRIOR + keys, mask=seen, other=0.0)
    if C.IS_NORMALIZED:
        slope = tl.where(seen, shape * slope + weight * alpha_digamma_of(shape), 0.0)
    return shape, slope


@triton.jit
def read_keys_backward(inputs, grads, outputs, strides, heads, m, C: tl.constexpr):
    """Some keys of one head of one example: adds to their gradient, and sums for the weights.

    With normalised shapes, DPRIOR is the contribution of pairs to their gradient. The rest is a
    function of the shape times WEIGHT, the total weight of the KL over all rows.
    """
    BLOCK_D: tl.constexpr = C.BLOCK_D
    BLOCK_H: tl.constexpr = C.BLOCK_H
    K, W1, B1, W2, MASK, PRIOR = inputs
    DPRIOR, WEIGHT = grads
    DK, SUMS = outputs
    k_strides, dk_strides, mask_strides = strides
    plane, place = tl.program_id(0), tl.program_id(1)
    batch, head = plane // heads, plane % heads
    columns, units = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_H)
    K = at_head(K, k_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    DK = at_head(DK, dk_strides, batch, head)
    PRIOR += plane.to(tl.int64) * m
    DPRIOR += plane.to(tl.int64) * m
    TYPE: tl.constexpr = tl.bfloat16 if K.dtype.element_ty == tl.bfloat16 else tl.float32
    w1, b1, w2 = load_network(W1, B1, W2, columns, units, TYPE, C)
    weight = tl.load(WEIGHT + plane)
    total = tl.zeros([1], tl.float32)
    if C.IS_NORMALIZED:
        for start in range(0, m, C.BLOCK_N):
            keys = start + tl.arange(0, C.BLOCK_N)
            seen = keys_seen(MASK, keys, m, mask_strides[3], C.HAS_MASK)
            _, slope = gradient_of_logs(PRIOR, DPRIOR, keys, seen, weight, C)
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
        shape, dvalue = gradient_of_logs(PRIOR, DPRIOR, keys, seen, weight, C)
        if C.IS_NORMALIZED:
            dvalue -= shape * total
        before = dot(k, tl.trans(w1), C.PRECISION) + b1[None, :]
        dw2 += tl.sum(tl.maximum(before, 0.0) * dvalue[:, None], 0)
        db2 += tl.sum(dvalue, 0, keep_dims=True)
        dbefore = tl.where(before > 0, dvalue[:, None] * w2[None, :], 0.0)
        db1 += tl.sum(dbefore, 0)
        dbefore = dbefore.to(TYPE)
        dw1 += dot(tl.trans(dbefore), k, C.PRECISION)
        total_dk = dk.to(tl.float32) + dot(dbefore, w1, C.PRECISION)
        store_rows(DK, keys, columns, dk_strides[2], m, total_dk, C.HEAD_DIM)
    inside = (units < C.HIDDEN)[:, None] & (columns < C.HEAD_DIM)[None, :]
    SUMS += (plane * tl.num_programs(1) + place) * (C.HIDDEN * (C.HEAD_DIM + 2) + 1)
    tl.store(SUMS + units[:, None] * C.HEAD_DIM + columns[None, :], dw1, mask=inside)
    tl.store(SUMS + C.HIDDEN * C.HEAD_DIM + units, db1, mask=units < C.HIDDEN)
    tl.store(SUMS + C.HIDDEN * (C.HEAD_DIM + 1) + units, dw2, mask=units < C.HIDDEN)
    tl.store(SUMS + C.HIDDEN * (C.HEAD_DIM + 2) + tl.arange(0, 1), db2)


launch_read = Launcher(read_keys)
launch_read_backward = Launcher(read_keys_backward)


def _flags(key: Tensor, w1: Tensor, mask: Tensor | None) -> MlpFlags:
    """Sizes of the MLP; the softmax is left to the rows where queries see different keys."""
    hidden, d = w1.shape
    keys = KEYS // 2 if block(d) * key.element_size() >= LARGE_HEAD else KEYS
    normalized = mask_type(mask) != MaskType.PAIRS
    return MlpFlags(
        d, block(d), hidden, block(hidden), keys, SHARE, normalized and mask is not None,
        normalized, precision(key.dtype),
    )  # fmt: skip


def _mask_of(key: Tensor, mask: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
    """A mask of keys with the strides of the full shape; for none any tensor, never read."""
    if mask is None or mask_type(mask) == MaskType.PAIRS:
        return key, (0, 0, 0, 0)
    full = (*key.shape[:2], 1, key.shape[2])
    return mask.view(torch.uint8), mask.expand(full).stride()


def prior_of_keys(
    key: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The prior's shapes in float32, zero at masked keys, and their part of the KL of each row.

    If queries see different keys, the outputs of the MLP before the softmax.

    Args:
        key: The keys of each head, the last axis contiguous.
        w1: Weight of the first layer.
        b1: Its bias.
        w2: Weight of the second layer, one row.
        b2: Its bias.
        mask: The mask of the call.
    """
    batch, heads, m, _ = key.shape
    out = key.new_empty(batch, heads, m, dtype=torch.float32)
    rest = key.new_empty(batch, heads, dtype=torch.float32)
    seen, strides = _mask_of(key, mask)
    launch_read(
        (batch * heads, 1),
        ((key, w1.contiguous(), b1, w2, b2, seen), (out, rest)),
        ((key.stride(), strides), heads, m),
        C=_flags(key, w1, mask), num_warps=WARPS,
    )  # fmt: skip
    return out, rest


def prior_of_keys_backward(
    key: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, mask: Tensor | None, prior: Tensor,
    dprior: Tensor, dkl: Tensor, dkey: Tensor,
) -> Tensor:  # fmt: skip
    """Adds to the gradient of keys, and returns those of the network's tensors, concatenated.

    Args:
        key: The keys of each head.
        w1: Weight of the first layer.
        b1: Its bias.
        w2: Weight of the second layer.
        mask: The mask of the call.
        prior: What `prior_of_keys` made of them.
        dprior: For each head of queries parts that are to be added: of the gradient of what the
            layers give, or where that is normalised, of what pairs add to the shapes' own.
        dkl: The gradient of the KL of each head's rows.
        dkey: The gradient of keys.
    """
    batch, heads, m, _ = key.shape
    # Heads of queries that share a head of keys, and parts or rows, are summed.
    slopes, weight = (x.unflatten(1, (heads, -1)).flatten(2, 3).sum(2) for x in (dprior, dkl))
    grid = batch * heads, triton.cdiv(m, SHARE)
    sums = key.new_empty(grid[0] * grid[1], network_size(w1), dtype=torch.float32)
    seen, strides = _mask_of(key, mask)
    launch_read_backward(
        grid,
        ((key, w1.contiguous(), b1, w2, seen, prior), (slopes, weight), (dkey, sums)),
        ((key.stride(), dkey.stride(), strides), heads, m),
        C=_flags(key, w1, mask), num_warps=WARPS,
    )  # fmt: skip
    return sums.sum(0)


def network_size(w1: Tensor) -> int:
    """Number of parameters of the MLP."""
    return w1.numel() + 2 * w1.shape[0] + 1
