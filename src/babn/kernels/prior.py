"""The prior's network over keys with its softmax, in one kernel forward and one backward.

Two layers of a dozen numbers are too small for libraries of matrix products, and take a launch for
each operation there.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import LARGE_HEAD, Launcher, digits, token_by_token
from babn.kernels.special import LN2, LOG2_E, exp2, log2
from babn.kernels.tiles import BOTTOM, LOWEST, at_head, dot, load_rows, store_rows

KEYS, WARPS = 64, 4
"""Keys in a block, and the warps that work on it."""


@triton.jit
def load_network(
    W1, B1, W2, columns, units, D: tl.constexpr, HIDDEN: tl.constexpr
):  # fmt: skip
    """Weights of the two layers, zero beyond their sizes."""
    inside = (units < HIDDEN)[:, None] & (columns < D)[None, :]
    w1 = tl.load(W1 + units[:, None] * D + columns[None, :], mask=inside, other=0.0)
    b1 = tl.load(B1 + units, mask=units < HIDDEN, other=0.0)
    w2 = tl.load(W2 + units, mask=units < HIDDEN, other=0.0)
    return w1.to(tl.float32), b1.to(tl.float32), w2.to(tl.float32)


@triton.jit
def keys_seen(MASK, keys, m, stride, MASKED: tl.constexpr):
    """The keys that take part."""
    seen = keys < m
    if MASKED:
        seen = tl.load(MASK + keys * stride, mask=seen, other=0) != 0
    return seen


@triton.jit
def read_keys(
    K, W1, B1, W2, B2, MASK, OUT, k_strides, mask_strides, heads, m,
    D: tl.constexpr, BD: tl.constexpr, HIDDEN: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr,
    MASKED: tl.constexpr, NORMALIZED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """All keys of one head of one example."""
    plane = tl.program_id(0)
    batch, head = plane // heads, plane % heads
    columns, units = tl.arange(0, BD), tl.arange(0, BH)
    K = at_head(K, k_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    OUT += plane.to(tl.int64) * m
    w1, b1, w2 = load_network(W1, B1, W2, columns, units, D, HIDDEN)
    b2 = tl.load(B2).to(tl.float32)
    top = tl.full([1], BOTTOM, tl.float32)
    total = tl.zeros([1], tl.float32)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        k = load_rows(K, keys, columns, k_strides[2], m, D, BD, False).to(tl.float32)
        hidden = tl.maximum(dot(k, tl.trans(w1), IEEE) + b1[None, :], 0.0)
        value = tl.sum(hidden * w2[None, :], 1) + b2
        tl.store(OUT + keys, value, mask=keys < m)
        if NORMALIZED:
            seen = keys_seen(MASK, keys, m, mask_strides[3], MASKED)
            value = tl.where(seen, value * LOG2_E, LOWEST)
            higher = tl.maximum(top, tl.max(value, 0, keep_dims=True))
            total = total * exp2(top - higher) + tl.sum(exp2(value - higher), 0, keep_dims=True)
            top = higher
    if NORMALIZED:
        lse = (top + log2(total)) * LN2
        for start in range(0, m, BN):
            keys = start + tl.arange(0, BN)
            seen = keys_seen(MASK, keys, m, mask_strides[3], MASKED)
            value = tl.load(OUT + keys, mask=keys < m, other=0.0)
            tl.store(OUT + keys, tl.where(seen, value - lse, 0.0), mask=keys < m)


@triton.jit
def read_keys_backward(
    K, W1, B1, W2, MASK, OUT, DOUT, DK, SUMS, k_strides, dk_strides, mask_strides, heads, m,
    D: tl.constexpr, BD: tl.constexpr, HIDDEN: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr,
    MASKED: tl.constexpr, NORMALIZED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """All keys of one head of one example; sums for the weights."""
    plane = tl.program_id(0)
    batch, head = plane // heads, plane % heads
    columns, units = tl.arange(0, BD), tl.arange(0, BH)
    K = at_head(K, k_strides, batch, head)
    MASK = at_head(MASK, mask_strides, batch, head)
    OUT += plane.to(tl.int64) * m
    DOUT += plane.to(tl.int64) * m
    DK = at_head(DK, dk_strides, batch, head)
    w1, b1, w2 = load_network(W1, B1, W2, columns, units, D, HIDDEN)
    total = tl.zeros([1], tl.float32)
    if NORMALIZED:
        for start in range(0, m, BN):
            keys = start + tl.arange(0, BN)
            seen = keys_seen(MASK, keys, m, mask_strides[3], MASKED)
            total += tl.sum(tl.load(DOUT + keys, mask=seen, other=0.0), 0, keep_dims=True)
    dw1 = tl.zeros([BH, BD], tl.float32)
    db1 = tl.zeros([BH], tl.float32)
    dw2 = tl.zeros([BH], tl.float32)
    db2 = tl.zeros([1], tl.float32)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        dvalue = tl.load(DOUT + keys, mask=keys < m, other=0.0)
        if NORMALIZED:
            seen = keys_seen(MASK, keys, m, mask_strides[3], MASKED)
            share = exp2(tl.load(OUT + keys, mask=keys < m, other=0.0) * LOG2_E)
            dvalue = tl.where(seen, dvalue - share * total, 0.0)
        k = load_rows(K, keys, columns, k_strides[2], m, D, BD, False).to(tl.float32)
        before = dot(k, tl.trans(w1), IEEE) + b1[None, :]
        dw2 += tl.sum(tl.maximum(before, 0.0) * dvalue[:, None], 0)
        db2 += tl.sum(dvalue, 0, keep_dims=True)
        dbefore = tl.where(before > 0, dvalue[:, None] * w2[None, :], 0.0)
        db1 += tl.sum(dbefore, 0)
        dw1 += dot(tl.trans(dbefore), k, IEEE)
        dk = dot(dbefore, w1, IEEE)
        store_rows(DK, keys, columns, dk_strides[2], m, dk, D)
    inside = (units < HIDDEN)[:, None] & (columns < D)[None, :]
    SUMS += plane * (HIDDEN * (D + 2) + 1)
    tl.store(SUMS + units[:, None] * D + columns[None, :], dw1, mask=inside)
    tl.store(SUMS + HIDDEN * D + units, db1, mask=units < HIDDEN)
    tl.store(SUMS + HIDDEN * (D + 1) + units, dw2, mask=units < HIDDEN)
    tl.store(SUMS + HIDDEN * (D + 2) + tl.arange(0, 1), db2)


launch_read = Launcher(read_keys)
launch_read_backward = Launcher(read_keys_backward)


def _options(key: Tensor, w1: Tensor, mask: Tensor | None, normalized: bool) -> dict[str, Any]:
    hidden, d = w1.shape
    block, units = (max(16, triton.next_power_of_2(size)) for size in (d, hidden))
    keys = KEYS // 2 if block * key.element_size() >= LARGE_HEAD else KEYS
    return {
        "D": d, "BD": block, "HIDDEN": hidden, "BH": units, "BN": keys,
        "MASKED": mask is not None, "NORMALIZED": normalized,
        "IEEE": digits(key.dtype), "num_warps": WARPS,
    }  # fmt: skip


def _mask_of(key: Tensor, mask: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
    """A mask of keys as if it had the full shape; any tensor with strides of zero for none."""
    if mask is None:
        return key, (0, 0, 0, 0)
    full = (*key.shape[:2], 1, key.shape[2])
    return mask.view(torch.uint8), mask.expand(full).stride()


@torch.library.custom_op("babn::key_prior", mutates_args=())
def key_prior(
    key: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    mask: Tensor | None,
    normalized: bool,
) -> Tensor:
    """Two layers with ReLU between them for each key, in float32; log softmax over keys if asked.

    Args:
        key: The keys of each head, the last axis contiguous.
        w1: Weight of the first layer.
        b1: Its bias.
        w2: Weight of the second layer, one row.
        b2: Its bias.
        mask: The keys that take part, one row for all queries and heads.
        normalized: Whether to take the softmax; zero then stands at masked keys.
    """
    batch, heads, m, _ = key.shape
    out = key.new_empty(batch, heads, m, dtype=torch.float32)
    seen, strides = _mask_of(key, mask)
    launch_read(
        (batch * heads, 1),
        (key, w1.contiguous(), b1, w2, b2, seen, out),
        (key.stride(), strides, heads, m),
        **_options(key, w1, mask, normalized),
    )
    return out


@key_prior.register_fake
def _(key: Tensor, *rest: Any) -> Tensor:
    return key.new_empty(key.shape[:3], dtype=torch.float32)


@torch.library.custom_op("babn::key_prior_backward", mutates_args=())
def key_prior_backward(
    dout: Tensor,
    out: Tensor,
    key: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    mask: Tensor | None,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of keys, and of all weights and biases, one after the other for each head."""
    batch, heads, m, d = key.shape
    planes, dkey = batch * heads, token_by_token(key, m, d)
    parts = key.new_empty(planes, len(w1) * (d + 2) + 1, dtype=torch.float32)
    seen, strides = _mask_of(key, mask)
    launch_read_backward(
        (planes, 1),
        (key, w1.contiguous(), b1, w2, seen, out, dout.contiguous(), dkey, parts),
        (key.stride(), dkey.stride(), strides, heads, m),
        **_options(key, w1, mask, normalized),
    )
    return dkey, parts


@key_prior_backward.register_fake
def _(dout: Tensor, out: Tensor, key: Tensor, w1: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    (batch, heads, m, d), hidden = key.shape, w1.shape[0]
    parts = key.new_empty(batch * heads, hidden * (d + 2) + 1, dtype=torch.float32)
    return token_by_token(key, m, d), parts


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    key, w1, b1, w2, b2, mask, ctx.normalized = inputs
    ctx.last = b2.dtype
    ctx.save_for_backward(output, key, w1, b1, w2, mask)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once, as activation checkpointing wants it
    _, _, w1, b1, w2, _ = saved
    dkey, parts = key_prior_backward(dout, *saved, ctx.normalized)
    dw1, db1, dw2, db2 = parts.sum(0).split([w1.numel(), b1.numel(), w2.numel(), 1])
    return (
        dkey,
        dw1.view_as(w1).to(w1.dtype),
        db1.to(b1.dtype),
        dw2.view_as(w2).to(w2.dtype),
        db2.to(ctx.last),
        None,
        None,
    )


key_prior.register_autograd(_backward, setup_context=_setup)
