"""Softmax weights of one attention call as a tensor: the upward path begins with them."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.forward import LOWEST, add_exponentials, load_rows, scores, visible, where_seen
from babn.kernels.launch import LOG2_E, broadcast_strides, head_sizes, is_full, tile
from babn.kernels.special import exp2, log2


@triton.jit
def write_softmax(
    Q,
    K,
    MASK,
    BIAS,
    OUT,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_mb,
    stride_mh,
    stride_mn,
    stride_mm,
    stride_bb,
    stride_bh,
    stride_bn,
    stride_bm,
    heads,
    groups,
    n,
    m,
    factor,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    MASKED: tl.constexpr,
    BIASED: tl.constexpr,
    IEEE: tl.constexpr,
    FULL: tl.constexpr,
):
    """One block of queries of one head: the normaliser first, then the weights."""
    plane = tl.program_id(1)
    batch, head = plane // heads, plane % heads
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BD)
    batch64 = batch.to(tl.int64)
    Q += batch64 * stride_qb + head * stride_qh
    K += batch64 * stride_kb + (head // groups) * stride_kh
    MASK += batch64 * stride_mb + head * stride_mh
    BIAS += batch64 * stride_bb + head * stride_bh
    OUT += plane.to(tl.int64) * n * m
    q = load_rows(Q, rows, columns, stride_qn, n, D, BD, FULL)
    top = tl.full([BM], LOWEST, tl.float32)
    total = tl.zeros([BM], tl.float32)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        seen = visible(MASK, rows, keys, stride_mn, stride_mm, n, m, MASKED)
        s, _ = scores(
            q,
            K,
            BIAS,
            rows,
            keys,
            columns,
            stride_kn,
            stride_bn,
            stride_bm,
            factor,
            m,
            seen,
            BIASED,
            D,
            BD,
            IEEE,
            FULL,
        )
        top, total = add_exponentials(top, total, s, seen, FULL)
    lse = tl.where(total > 0, top + log2(total), 0.0)
    for start in range(0, m, BN):
        keys = start + tl.arange(0, BN)
        seen = visible(MASK, rows, keys, stride_mn, stride_mm, n, m, MASKED)
        s, _ = scores(
            q,
            K,
            BIAS,
            rows,
            keys,
            columns,
            stride_kn,
            stride_bn,
            stride_bm,
            factor,
            m,
            seen,
            BIASED,
            D,
            BD,
            IEEE,
            FULL,
        )
        w = exp2(where_seen(seen, s - lse[:, None], LOWEST, FULL))
        at = OUT + rows[:, None].to(tl.int64) * m + keys[None, :]
        inside = (rows < n)[:, None] & (keys < m)[None, :]
        tl.store(at, w.to(OUT.dtype.element_ty), mask=inside)


@torch.library.custom_op("babn::softmax_weights", mutates_args=())
def softmax_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """Softmax of scaled scores over the keys that take part, in the precision of the queries."""
    batch, heads, n, _ = q.shape
    m = k.shape[2]
    out = q.new_empty(batch, heads, n, m)
    sizes, blocks = head_sizes(q, q), tile(n, m)
    write_softmax[(triton.cdiv(n, blocks["BM"]), batch * heads)](
        q,
        k,
        q if mask is None else mask.view(torch.uint8),
        q if bias is None else bias,
        out,
        *q.stride()[:3],
        *k.stride()[:3],
        *broadcast_strides(mask, out.shape),
        *broadcast_strides(bias, out.shape),
        heads,
        heads // k.shape[1],
        n,
        m,
        scale * LOG2_E,
        D=sizes["D"],
        BD=sizes["BD"],
        **blocks,
        MASKED=mask is not None,
        BIASED=bias is not None,
        IEEE=q.dtype == torch.float32,
        FULL=is_full(mask, n, m, blocks),
    )
    return out


@softmax_weights.register_fake
def _(q: Tensor, k: Tensor, *rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], k.shape[2])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, _, bias, ctx.scale = inputs
    ctx.save_for_backward(q, k, bias, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None, None]:
    q, k, bias, weights = ctx.saved_tensors
    inner = (grad.float() * weights).sum(-1, keepdim=True)
    dscores = (weights * (grad - inner)).to(q.dtype)
    groups = q.shape[1] // k.shape[1]
    dq = dscores @ k.repeat_interleave(groups, 1) * ctx.scale
    dk = (dscores.transpose(-1, -2) @ q * ctx.scale).unflatten(1, (-1, groups)).sum(2)
    dbias = None if bias is None else dscores.sum_to_size(bias.shape).to(bias.dtype)
    return dq, dk, None, dbias, None


softmax_weights.register_autograd(_backward, setup_context=_setup)
