"""Softmax weights of one attention call as a tensor, with which the upward path begins."""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher, Pairs, compiled_for, operator
from babn.kernels.special import exp2, log2
from babn.kernels.tiles import (
    BOTTOM,
    LOWEST,
    add_exponentials,
    at_head,
    load_rows,
    pair_offsets,
    scores,
    store_pairs,
    visible,
    where_seen,
)


@triton.jit
def write_softmax(inputs, OUT, strides, sizes, factor, C: tl.constexpr):
    """One block of queries of one head: first the normaliser, then the weights."""
    BLOCK_M: tl.constexpr = C.BLOCK_M
    BLOCK_N: tl.constexpr = C.BLOCK_N
    BLOCK_D: tl.constexpr = C.BLOCK_D
    Q, K, MASK, BIAS = inputs
    q_strides, k_strides, mask_strides, bias_strides = strides
    heads, groups, n, m = sizes
    ALL_SEEN: tl.constexpr = C.EVEN_MN and C.MASK_TYPE == 0
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    rows, columns = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    Q = at_head(Q, q_strides, batch, head)
    K = at_head(K, k_strides, batch, head // groups)
    MASK = at_head(MASK, mask_strides, batch, head)
    BIAS = at_head(BIAS, bias_strides, batch, head)
    OUT += plane.to(tl.int64) * n * m
    q = load_rows(Q, rows, columns, q_strides[2], n, C.HEAD_DIM, BLOCK_D, C.EVEN_MN)
    top = tl.full([BLOCK_M], BOTTOM, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = visible(MASK, mask_strides, rows, keys, n, m, C)
        inside = (rows < n)[:, None] & (keys < m)[None, :]
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, BLOCK_D, C.EVEN_MN)
        s = scores(q, k, BIAS, bias_strides, rows, keys, factor, inside, C)
        top, total = add_exponentials(top, total, s, seen, ALL_SEEN)
    lse = tl.where(total > 0, top + log2(total), 0.0)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = visible(MASK, mask_strides, rows, keys, n, m, C)
        inside = (rows < n)[:, None] & (keys < m)[None, :]
        k = load_rows(K, keys, columns, k_strides[2], m, C.HEAD_DIM, BLOCK_D, C.EVEN_MN)
        s = scores(q, k, BIAS, bias_strides, rows, keys, factor, inside, C)
        w = exp2(where_seen(seen, s - lse[:, None], LOWEST, ALL_SEEN))
        store_pairs(OUT, pair_offsets(rows, keys, m, 1), w, inside, C.EVEN_MN)


launch_softmax = Launcher(write_softmax)


def weights_of(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """Softmax of scaled scores over the keys that take part, in the precision of the queries."""
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, heads, n, m)
    pairs = Pairs.of(q, m, mask, bias)
    flags, options = compiled_for("softmax", q, q, m, mask, bias)
    launch_softmax(
        (triton.cdiv(n, flags.BLOCK_M), batch * heads),
        ((q, k, pairs.mask, pairs.bias), out),
        ((q.stride(), k.stride(), pairs.mask_strides, pairs.bias_strides),
         (heads, heads // k.shape[1], n, m), scale / math.log(2)),
        C=flags, **options,
    )  # fmt: skip
    return out


def weights_backward(
    weights: Tensor, grad: Tensor, q: Tensor, k: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys and bias from that of the weights."""
    inner = (grad.float() * weights).sum(-1, keepdim=True)
    dscores = (weights * (grad - inner)).to(q.dtype)
    groups = q.shape[1] // k.shape[1]
    dq = dscores @ k.repeat_interleave(groups, 1) * scale
    dk = (dscores.transpose(-1, -2) @ q * scale).unflatten(1, (-1, groups)).sum(2)
    return dq, dk, None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype)


@operator
def softmax_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """The same as an operator with gradients."""
    return weights_of(q, k, mask, bias, scale)


@softmax_weights.register_fake
def _(q: Tensor, k: Tensor, *rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], k.shape[2])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, _, bias, ctx.scale = inputs
    ctx.save_for_backward(q, k, bias, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None, None]:
    q, k, bias, weights = ctx.saved_tensors
    dq, dk, dbias = weights_backward(weights, grad, q, k, bias, ctx.scale)
    return dq, dk, None, dbias, None


softmax_weights.register_autograd(_backward, setup_context=_setup)
