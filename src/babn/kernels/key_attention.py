r"""Flash attention with a factor per key, $W_{ij} \propto e^{\Phi_{ij}} E_j$, and its gradient.

Torch's fastest kernels take no bias, and none returns the gradient of a bias on keys without a
tensor over all pairs of queries and keys. Here it is a sum that the loop over queries makes anyway.
The tiling is that of flash attention ([Dao 2023](https://arxiv.org/abs/2307.08691)). Masked keys
have a bias of minus infinity, which also covers the keys beyond the end of a tile.

`KeyAttention` draws the factors, attends, and has gradients. Compilers trace it down to the
launches of the kernels, so that a compiled model launches them itself. Arguments of these kernels
are therefore not grouped as those of the kernels for noise over pairs: torch's compiler passes no
tuples.
"""

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels import key_draw
from babn.kernels.key_draw import draw
from babn.kernels.key_draw_backward import draw_backward_into
from babn.kernels.key_inputs import KeyNoise
from babn.kernels.launch import (
    CACHED_LAUNCHES,
    Launcher,
    Types,
    block,
    ceil_div,
    float32_products,
    token_by_token,
    traceable,
)
from babn.kernels.tiles import LOWEST, at_head, load_rows, store_rows, tile_and_plane

TILES = {
    "forward": (128, 64, 4),
    "queries": (128, 64, 4),
    "keys": (64, 64, 4),
    "whole": (64, 128, 8),
}
"""Queries, keys and warps of a tile with heads of 128 bytes; `tools/key_forms.py` tries others.

`whole` replaces `keys` where one tile covers all keys.
"""

KERNELS = "forward", "queries", "keys"


@triton.jit
def _token_by_token(X, batch, head, heads, tokens, HEAD_DIM: tl.constexpr):
    """The plane of one example and head in a result, in which the heads of a token are adjacent."""
    return X + (batch.to(tl.int64) * tokens * heads + head) * HEAD_DIM


@triton.jit
def attend_forward(
    Q, K, V, BIAS, OUT, LSE, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    heads, groups, n, m, scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, IS_CAUSAL: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The output of a block of queries, and the logarithm of their normalisers to base 2."""
    scale = tl.cast(scale, tl.float32)  # compilers pass floats in double precision
    tile, plane = tile_and_plane(n, BLOCK_M)
    batch, head = plane // heads, plane % heads
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    K = at_head(K, (k_batch, k_head), batch, head // groups)
    V = at_head(V, (v_batch, v_head), batch, head // groups)
    BIAS += plane.to(tl.int64) * m
    Q = at_head(Q, (q_batch, q_head), batch, head)
    q = load_rows(Q, rows, columns, q_row, n, HEAD_DIM, BLOCK_D, EVEN_M)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = tl.minimum(m, (tile + 1) * BLOCK_M) if IS_CAUSAL else m
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = load_rows(K, keys, columns, k_row, m, HEAD_DIM, BLOCK_D, EVEN_N)
        bias = tl.load(BIAS + keys, mask=keys < m, other=float("-inf"))
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + bias[None, :]
        if IS_CAUSAL:
            s = tl.where(rows[:, None] >= keys[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        v = load_rows(V, keys, columns, v_row, m, HEAD_DIM, BLOCK_D, EVEN_N)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
        top = higher
    lse = tl.where(total > 0, top + tl.log2(total), -LOWEST)
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(LSE + plane.to(tl.int64) * n + rows, lse, mask=rows < n)
    OUT = _token_by_token(OUT, batch, head, heads, n, HEAD_DIM)
    store_rows(OUT, rows, columns, heads * HEAD_DIM, n, out, HEAD_DIM, EVEN_M)


@triton.jit
def attend_backward_keys(
    Q, K, V, BIAS, LSE, DELTA, DOUT, DQ, DK, DV, DBIAS, q_batch, q_head, q_row,
    k_batch, k_head, k_row, v_batch, v_head, v_row, heads, groups, n, m, scale, slope,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, IS_CAUSAL: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys with their values and log factors, over all their queries.

    A block with all keys also computes the gradients of queries.
    """
    scale, slope = tl.cast(scale, tl.float32), tl.cast(slope, tl.float32)
    key_heads = heads // groups
    tile, key_plane = tile_and_plane(m, BLOCK_N)
    batch, key_head = key_plane // key_heads, key_plane % key_heads
    keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    K = at_head(K, (k_batch, k_head), batch, key_head)
    k = load_rows(K, keys, columns, k_row, m, HEAD_DIM, BLOCK_D, EVEN_N)
    V = at_head(V, (v_batch, v_head), batch, key_head)
    v = load_rows(V, keys, columns, v_row, m, HEAD_DIM, BLOCK_D, EVEN_N)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first = tile * BLOCK_N // BLOCK_M * BLOCK_M if IS_CAUSAL else 0
    for group in range(groups):
        head = key_head * groups + group
        plane = (batch * heads + head).to(tl.int64)
        QH = at_head(Q, (q_batch, q_head), batch, head)
        DOUTH = _token_by_token(DOUT, batch, head, heads, n, HEAD_DIM)
        bias = tl.load(BIAS + plane * m + keys, mask=keys < m, other=float("-inf"))
        dbias = tl.zeros([BLOCK_N], tl.float32)
        for start in range(first, n, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q = load_rows(QH, rows, columns, q_row, n, HEAD_DIM, BLOCK_D, EVEN_M)
            lse = tl.load(LSE + plane * n + rows, mask=rows < n, other=-LOWEST)
            s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale + bias[:, None]
            p = tl.exp2(s - lse[None, :])
            if IS_CAUSAL:
                p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
            dout = load_rows(DOUTH, rows, columns, heads * HEAD_DIM, n, HEAD_DIM, BLOCK_D, EVEN_M)
            dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision=PRECISION)
            if not IS_WHOLE:
                delta = tl.load(DELTA + plane * n + rows, mask=rows < n, other=0.0)
            dp = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
            if IS_WHOLE:
                delta = tl.sum(p * dp, 0)
            ds = p * (dp - delta[None, :])
            dbias += tl.sum(ds, 1)
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
            if IS_WHOLE:
                dq = slope * tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision=PRECISION)
                DQH = _token_by_token(DQ, batch, head, heads, n, HEAD_DIM)
                store_rows(DQH, rows, columns, heads * HEAD_DIM, n, dq, HEAD_DIM, EVEN_M)
        tl.store(DBIAS + plane * m + keys, dbias, mask=keys < m)
    DK = _token_by_token(DK, batch, key_head, key_heads, m, HEAD_DIM)
    DV = _token_by_token(DV, batch, key_head, key_heads, m, HEAD_DIM)
    store_rows(DK, keys, columns, key_heads * HEAD_DIM, m, dk * slope, HEAD_DIM, EVEN_N)
    store_rows(DV, keys, columns, key_heads * HEAD_DIM, m, dv, HEAD_DIM, EVEN_N)


@triton.jit
def attend_backward_queries(
    Q, K, V, BIAS, LSE, OUT, DOUT, DQ, DELTA, q_batch, q_head, q_row, k_batch, k_head, k_row,
    v_batch, v_head, v_row, heads, groups, n, m, scale, slope,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, IS_CAUSAL: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries over all their keys, and products of output and gradient."""
    scale, slope = tl.cast(scale, tl.float32), tl.cast(slope, tl.float32)
    tile, plane = tile_and_plane(n, BLOCK_M)
    batch, head = plane // heads, plane % heads
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    K = at_head(K, (k_batch, k_head), batch, head // groups)
    V = at_head(V, (v_batch, v_head), batch, head // groups)
    BIAS += plane.to(tl.int64) * m
    Q = at_head(Q, (q_batch, q_head), batch, head)
    q = load_rows(Q, rows, columns, q_row, n, HEAD_DIM, BLOCK_D, EVEN_M)
    DOUT = _token_by_token(DOUT, batch, head, heads, n, HEAD_DIM)
    dout = load_rows(DOUT, rows, columns, heads * HEAD_DIM, n, HEAD_DIM, BLOCK_D, EVEN_M)
    OUT = _token_by_token(OUT, batch, head, heads, n, HEAD_DIM)
    out = load_rows(OUT, rows, columns, heads * HEAD_DIM, n, HEAD_DIM, BLOCK_D, EVEN_M)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    tl.store(DELTA + plane.to(tl.int64) * n + rows, delta, mask=rows < n)
    lse = tl.load(LSE + plane.to(tl.int64) * n + rows, mask=rows < n, other=-LOWEST)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = tl.minimum(m, (tile + 1) * BLOCK_M) if IS_CAUSAL else m
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = load_rows(K, keys, columns, k_row, m, HEAD_DIM, BLOCK_D, EVEN_N)
        v = load_rows(V, keys, columns, v_row, m, HEAD_DIM, BLOCK_D, EVEN_N)
        bias = tl.load(BIAS + keys, mask=keys < m, other=float("-inf"))
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + bias[None, :]
        p = tl.exp2(s - lse[:, None])
        if IS_CAUSAL:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        dp = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    DQ = _token_by_token(DQ, batch, head, heads, n, HEAD_DIM)
    store_rows(DQ, rows, columns, heads * HEAD_DIM, n, dq * slope, HEAD_DIM, EVEN_M)


launch_forward = Launcher(attend_forward)
launch_keys = Launcher(attend_backward_keys)
launch_queries = Launcher(attend_backward_queries)


def options_of(
    name: str, n: int, m: int, size: int, width: int, causal: bool, products: str
) -> dict[str, Any]:
    """Constants and compile options of a kernel; large heads and short texts get smaller tiles.

    Args:
        name: Its name in `KERNELS`.
        n: Number of queries.
        m: Number of keys.
        size: Size of a head.
        width: Bytes of each number of the queries.
        causal: Whether a query sees only keys up to its own index.
        products: How products of float32 matrices are computed.
    """
    parts = max(1, block(size) * width // 128)
    whole = name == "keys" and m <= TILES["whole"][1] // parts
    queries, keys, warps = TILES["whole" if whole else name]
    rows, columns = (
        max(16, each // parts if count >= each // parts else block(count))
        for each, count in ((queries, n), (keys, m))
    )
    return {
        "HEAD_DIM": size,
        "BLOCK_D": block(size),
        "IS_CAUSAL": causal,
        "EVEN_M": n % rows == 0 and size == block(size),
        "EVEN_N": m % columns == 0 and size == block(size),
        "PRECISION": products,
        "BLOCK_M": rows,
        "BLOCK_N": columns,
        "num_warps": warps if columns * parts > 64 else 4,
        "num_stages": 3,
        **({"IS_WHOLE": whole} if name == "keys" else {}),
    }


@lru_cache(CACHED_LAUNCHES)
def call_options(
    n: int, m: int, size: int, width: int, causal: bool, parameters: int, masked: bool,
    noise: KeyNoise, products: str,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Launch options of all kernels of a call, cached together; arguments as in `options_of`."""
    of_keys = m, size, width, parameters, masked, noise, products
    draws = {name: key_draw.options_of(name, *of_keys) for name in key_draw.TILES}
    return draws | {name: options_of(name, n, m, size, width, causal, products) for name in KERNELS}


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, options: dict[str, Any],
    types: Types = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output of a call for each example, query and head, and the logarithms of normalisers.

    Args:
        q: Queries, whose last axis is contiguous, as that of keys and values.
        k: Keys; several heads of queries may share a head.
        v: Values, as wide as keys.
        bias: Log factors to base 2, one for each example, head and key in this order, contiguous.
        scale: Factor of the dot products.
        options: Constants and compile options of the kernel.
        types: Types of the tensors, as launches take them.
    """
    batch, heads, n, size = q.shape
    _, key_heads, m, _ = k.shape
    out = q.new_empty(batch, n, heads, size)
    lse = bias.new_empty(batch, heads, n)
    launch_forward(
        (ceil_div(n, options["BLOCK_M"]) * batch * heads, 1),
        (q, k, v, bias, out, lse),
        (*_strides(q, k, v), heads, heads // key_heads, n, m, scale / math.log(2)),
        options,
        types,
    )
    return out, lse


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, out: Tensor, lse: Tensor, dout: Tensor,
    scale: float, options: dict[str, dict[str, Any]], types: Types = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys, values, and natural log factors.

    The output and its gradient are contiguous, as `attend` returns the output. If there are several
    blocks of keys, the gradients of queries take a kernel of their own.
    """
    batch, heads, n, _ = q.shape
    _, key_heads, m, _ = k.shape
    dbias = torch.empty_like(bias)
    dq, dk, dv = token_by_token(q), token_by_token(k), token_by_token(v)
    numbers = (
        *_strides(q, k, v), heads, heads // key_heads, n, m, scale / math.log(2), scale,
    )  # fmt: skip
    how, delta = options["keys"], lse
    if not how["IS_WHOLE"]:
        delta = torch.empty_like(lse)
        launch_queries(
            (ceil_div(n, options["queries"]["BLOCK_M"]) * batch * heads, 1),
            (q, k, v, bias, lse, out, dout, dq, delta),
            numbers,
            options["queries"],
            types,
        )
    launch_keys(
        (ceil_div(m, how["BLOCK_N"]) * batch * key_heads, 1),
        (q, k, v, bias, lse, delta, dout, dq, dk, dv, dbias),
        numbers,
        how,
        types,
    )
    return dq, dk, dv, dbias


def _strides(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])


class KeyAttention(torch.autograd.Function):
    """Output of a call, and the numbers of its variables that `KernelKeyKL` takes.

    The output has the shape (batch, query, head, size). Its gradient is contiguous then, and
    compilers, which make gradients contiguous, need no copy. Takes queries, keys and values, the
    arguments of `draw` after the number of heads, and scale and causality of the call.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor | None,
        parameters: Tensor, typical: Tensor | None, noise: KeyNoise, scale: float, causal: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Draws the variables, and attends."""
        _, heads, n, size = q.shape
        options = traceable(call_options)(
            n, k.shape[2], size, q.element_size(), causal, parameters.shape[0], seen is not None,
            noise, float32_products(),
        )  # fmt: skip
        others = (parameters,) if typical is None else (parameters, typical)
        types = q.dtype, k.dtype, v.dtype, *[x.dtype for x in others]
        bias, numbers, stats = draw(
            k, heads, u, seen, parameters, typical, noise, options["draw"], types
        )
        out, lse = attend(q, k, v, bias, scale, options["forward"], types)
        ctx.save_for_backward(q, k, v, u, seen, parameters, out, numbers, bias, lse, stats)
        ctx.settings = noise, scale, options, types
        return out, numbers

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dnumbers: Tensor) -> tuple[Any, ...]:
        """Gradients of queries, keys, values and parameters."""
        q, k, v, u, seen, parameters, out, numbers, bias, lse, stats = ctx.saved_tensors
        noise, scale, options, types = ctx.settings
        if dnumbers.stride()[1:] != numbers.stride()[1:]:
            dnumbers = dnumbers.contiguous()
        dq, dk, dv, dbias = attend_backward(
            q, k, v, bias, out, lse, dout.contiguous(), scale, options, types
        )
        found = draw_backward_into(
            dk, k, q.shape[1], u, seen, parameters, numbers, stats, dbias, dnumbers, noise,
            options["draw_backward"], types,
        )  # fmt: skip
        if found.dtype != parameters.dtype:
            found = found.to(parameters.dtype)
        return dq, dk, dv, None, None, found, None, None, None, None
