r"""Flash attention with a factor per key, $W_{ij} \propto e^{\Phi_{ij}} E_j$, and its gradient.

Torch's fastest kernels take no bias, and none returns the gradient of a bias on keys without a
tensor over all pairs of queries and keys. Here it is a sum that the loop over queries makes anyway.
The tiling is that of flash attention ([Dao 2023](https://arxiv.org/abs/2307.08691)). Masked keys
have a bias of minus infinity, which also covers the keys beyond the end of a tile.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import CACHED_LAUNCHES, Launcher, block, precision, token_by_token
from babn.kernels.tiles import LOWEST, at_head, dot, load_rows, store_rows, tile_and_plane

TILES = {"forward": (128, 64, 4), "keys": (64, 64, 4), "queries": (128, 64, 4)}
"""Queries, keys and warps of a tile with heads of 128 bytes; `tools/key_forms.py` tries others."""


@dataclass(frozen=True)
class KeyFlags:
    """What the kernels are compiled for; names as in `Flags`.

    `EVEN_M` and `EVEN_N` are whether queries and keys fill whole tiles, and heads their blocks.
    """

    HEAD_DIM: int
    BLOCK_D: int
    IS_CAUSAL: bool
    EVEN_M: bool
    EVEN_N: bool
    PRECISION: int
    BLOCK_M: int
    BLOCK_N: int


@triton.jit
def attend_forward(inputs, outputs, strides, sizes, scale, C: tl.constexpr):
    """The output of a block of queries, and the logarithm of their normalisers to base 2."""
    BLOCK_M: tl.constexpr = C.BLOCK_M
    BLOCK_D: tl.constexpr = C.BLOCK_D
    Q, K, V, BIAS = inputs
    OUT, LSE = outputs
    q_strides, k_strides, v_strides, out_strides = strides
    heads, groups, n, m = sizes
    tile, plane = tile_and_plane(n, BLOCK_M)
    batch, head = plane // heads, plane % heads
    rows = tile * BLOCK_M + tl.arange(0, C.BLOCK_M)
    columns = tl.arange(0, C.BLOCK_D)
    Q = at_head(Q, q_strides, batch, head)
    K = at_head(K, k_strides, batch, head // groups)
    V = at_head(V, v_strides, batch, head // groups)
    BIAS += plane.to(tl.int64) * m
    q = load_rows(Q, rows, columns, q_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_M)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = tl.minimum(m, (tile + 1) * BLOCK_M) if C.IS_CAUSAL else m
    for start in range(0, end, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_N)
        bias = tl.load(BIAS + keys, mask=keys < m, other=float("-inf"))
        s = dot(q, tl.trans(k), C.PRECISION) * scale + bias[None, :]
        if C.IS_CAUSAL:
            s = tl.where(rows[:, None] >= keys[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        v = load_rows(V, keys, columns, v_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_N)
        out = dot(p.to(v.dtype), v, C.PRECISION, out * shrink[:, None])
        top = higher
    lse = tl.where(total > 0, top + tl.log2(total), -LOWEST)
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(LSE + plane.to(tl.int64) * n + rows, lse, mask=rows < n)
    OUT = at_head(OUT, out_strides, batch, head)
    store_rows(OUT, rows, columns, out_strides[2], n, out, C.HEAD_DIM, C.EVEN_M)


@triton.jit
def attend_backward_keys(inputs, outputs, strides, sizes, scale, slope, C: tl.constexpr):
    """Gradients of a block of keys with their values and log factors, over all their queries."""
    BLOCK_M: tl.constexpr = C.BLOCK_M
    BLOCK_N: tl.constexpr = C.BLOCK_N
    BLOCK_D: tl.constexpr = C.BLOCK_D
    Q, K, V, BIAS, LSE, DELTA, DOUT = inputs
    DK, DV, DBIAS = outputs
    q_strides, k_strides, v_strides, dout_strides = strides
    heads, groups, n, m = sizes
    key_heads = heads // groups
    tile, key_plane = tile_and_plane(m, BLOCK_N)
    batch, key_head = key_plane // key_heads, key_plane % key_heads
    keys = tile * BLOCK_N + tl.arange(0, C.BLOCK_N)
    columns = tl.arange(0, C.BLOCK_D)
    K = at_head(K, k_strides, batch, key_head)
    V = at_head(V, v_strides, batch, key_head)
    k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_N)
    v = load_rows(V, keys, columns, v_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_N)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first = tile * BLOCK_N // BLOCK_M * BLOCK_M if C.IS_CAUSAL else 0
    for group in range(groups):
        head = key_head * groups + group
        plane = (batch * heads + head).to(tl.int64)
        QH = at_head(Q, q_strides, batch, head)
        DOUTH = at_head(DOUT, dout_strides, batch, head)
        bias = tl.load(BIAS + plane * m + keys, mask=keys < m, other=float("-inf"))
        dbias = tl.zeros([BLOCK_N], tl.float32)
        for start in range(first, n, C.BLOCK_M):
            rows = start + tl.arange(0, C.BLOCK_M)
            q = load_rows(QH, rows, columns, q_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_M)
            lse = tl.load(LSE + plane * n + rows, mask=rows < n, other=-LOWEST)
            s = dot(k, tl.trans(q), C.PRECISION) * scale + bias[:, None]
            p = tl.exp2(s - lse[None, :])
            if C.IS_CAUSAL:
                p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
            dout = load_rows(
                DOUTH, rows, columns, dout_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_M
            )
            dv = dot(p.to(dout.dtype), dout, C.PRECISION, dv)
            delta = tl.load(DELTA + plane * n + rows, mask=rows < n, other=0.0)
            ds = p * (dot(v, tl.trans(dout), C.PRECISION) - delta[None, :])
            dbias += tl.sum(ds, 1)
            dk = dot(ds.to(q.dtype), q, C.PRECISION, dk)
        tl.store(DBIAS + plane * m + keys, dbias, mask=keys < m)
    # As `token_by_token` lays them out: with strides as arguments registers would spill.
    at = (batch.to(tl.int64) * m * key_heads + key_head) * C.HEAD_DIM
    store_rows(DK + at, keys, columns, key_heads * C.HEAD_DIM, m, dk * slope, C.HEAD_DIM, C.EVEN_N)
    store_rows(DV + at, keys, columns, key_heads * C.HEAD_DIM, m, dv, C.HEAD_DIM, C.EVEN_N)


@triton.jit
def attend_backward_queries(inputs, outputs, strides, sizes, scale, slope, C: tl.constexpr):
    """Gradients of a block of queries over all their keys, and products of output and gradient."""
    BLOCK_M: tl.constexpr = C.BLOCK_M
    BLOCK_D: tl.constexpr = C.BLOCK_D
    Q, K, V, BIAS, LSE, OUT, DOUT = inputs
    DQ, DELTA = outputs
    q_strides, k_strides, v_strides, out_strides, dout_strides, dq_strides = strides
    heads, groups, n, m = sizes
    tile, plane = tile_and_plane(n, BLOCK_M)
    batch, head = plane // heads, plane % heads
    rows = tile * BLOCK_M + tl.arange(0, C.BLOCK_M)
    columns = tl.arange(0, C.BLOCK_D)
    Q = at_head(Q, q_strides, batch, head)
    K = at_head(K, k_strides, batch, head // groups)
    V = at_head(V, v_strides, batch, head // groups)
    OUT = at_head(OUT, out_strides, batch, head)
    DOUT = at_head(DOUT, dout_strides, batch, head)
    BIAS += plane.to(tl.int64) * m
    q = load_rows(Q, rows, columns, q_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_M)
    dout = load_rows(DOUT, rows, columns, dout_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_M)
    out = load_rows(OUT, rows, columns, out_strides[2], n, C.HEAD_DIM, C.BLOCK_D, C.EVEN_M)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    tl.store(DELTA + plane.to(tl.int64) * n + rows, delta, mask=rows < n)
    lse = tl.load(LSE + plane.to(tl.int64) * n + rows, mask=rows < n, other=-LOWEST)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = tl.minimum(m, (tile + 1) * BLOCK_M) if C.IS_CAUSAL else m
    for start in range(0, end, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_N)
        v = load_rows(V, keys, columns, v_strides[2], m, C.HEAD_DIM, C.BLOCK_D, C.EVEN_N)
        bias = tl.load(BIAS + keys, mask=keys < m, other=float("-inf"))
        s = dot(q, tl.trans(k), C.PRECISION) * scale + bias[None, :]
        p = tl.exp2(s - lse[:, None])
        if C.IS_CAUSAL:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        ds = p * (dot(dout, tl.trans(v), C.PRECISION) - delta[:, None])
        dq = dot(ds.to(k.dtype), k, C.PRECISION, dq)
    DQ = at_head(DQ, dq_strides, batch, head)
    store_rows(DQ, rows, columns, dq_strides[2], n, dq * slope, C.HEAD_DIM, C.EVEN_M)


launch_forward = Launcher(attend_forward)
launch_keys = Launcher(attend_backward_keys)
launch_queries = Launcher(attend_backward_queries)


def compiled_for(kernel: str, q: Tensor, m: int, causal: bool) -> tuple[KeyFlags, dict[str, int]]:
    """Flags and compile options of a kernel; large heads and short texts get smaller tiles."""
    return _compiled_for(
        kernel, q.shape[2], m, q.shape[3], q.element_size(), causal, precision(q.dtype)
    )


@lru_cache(CACHED_LAUNCHES)
def _compiled_for(
    kernel: str, n: int, m: int, size: int, width: int, causal: bool, products: int
) -> tuple[KeyFlags, dict[str, int]]:
    queries, keys, warps = TILES[kernel]
    parts = max(1, block(size) * width // 128)
    rows, columns = (
        max(16, each // parts if count >= each // parts else block(count))
        for each, count in ((queries, n), (keys, m))
    )
    even = size == block(size)
    flags = KeyFlags(
        size, block(size), causal, even and n % rows == 0, even and m % columns == 0, products,
        rows, columns,
    )  # fmt: skip
    return flags, {"num_warps": warps, "num_stages": 3}


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """The output of a call, and the logarithms of its normalisers.

    Args:
        q: Queries, whose last axis is contiguous, as that of keys and values.
        k: Keys; several heads of queries may share a head.
        v: Values, as wide as keys.
        bias: Log factors to base 2, one for each example, head and key in this order, contiguous.
        scale: Factor of the dot products.
        causal: Whether a query sees only keys up to its own index.
    """
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out, lse = token_by_token(q), bias.new_empty(batch, heads, n)
    flags, options = compiled_for("forward", q, m, causal)
    launch_forward(
        (-(-n // flags.BLOCK_M) * batch * heads, 1),
        ((q, k, v, bias), (out, lse)),
        (_strides(q, k, v, out), (heads, heads // k.shape[1], n, m), scale / math.log(2)),
        C=flags, **options,
    )  # fmt: skip
    return out, lse


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, lse: Tensor, dout: Tensor,
    scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys, values, and natural log factors."""
    batch, heads, n, _ = q.shape
    key_heads, m = k.shape[1], k.shape[2]
    delta, dbias = torch.empty_like(lse), torch.empty_like(bias)
    dq, dk, dv = token_by_token(q), token_by_token(k), token_by_token(v)
    numbers = (heads, heads // key_heads, n, m), scale / math.log(2), scale
    flags, options = compiled_for("queries", q, m, causal)
    launch_queries(
        (-(-n // flags.BLOCK_M) * batch * heads, 1),
        ((q, k, v, bias, lse, out, dout), (dq, delta)),
        (_strides(q, k, v, out, dout, dq), *numbers),
        C=flags, **options,
    )  # fmt: skip
    flags, options = compiled_for("keys", q, m, causal)
    launch_keys(
        (-(-m // flags.BLOCK_N) * batch * key_heads, 1),
        ((q, k, v, bias, lse, delta, dout), (dk, dv, dbias)),
        (_strides(q, k, v, dout), *numbers),
        C=flags, **options,
    )  # fmt: skip
    return dq, dk, dv, dbias


def _strides(*tensors: Tensor) -> tuple[Any, ...]:
    return tuple([x.stride() for x in tensors])
