"""Linear maps over the heads of an attention-shaped tensor, reading and writing it once.

Matrices of a dozen rows against hundreds of thousands of columns are not what libraries for matrix
products are made for; here each program takes all heads of a block of query-key pairs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.launch import Launcher
from babn.kernels.special import LN2, LOG2_E, exp2, softplus_and_slope
from babn.kernels.tiles import dot, pack

PAIRS, PAIRS_WARPS = 128, 4
"""Query-key pairs in a block of the map, and the warps that work on it."""

SUMMED_PAIRS, SUMMED_WARPS = 256, 4
"""The same for sums over pairs."""

PROGRAMS = 1056
"""Programs that share the blocks of sums over pairs: eight for each multiprocessor of an H200."""


@triton.jit
def load_heads(X, heads, pairs, pair_count, HEADS: tl.constexpr):
    """All heads of a block of pairs, zero outside."""
    inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
    return tl.load(X + heads[:, None].to(tl.int64) * pair_count + pairs[None, :], inside, other=0.0)


@triton.jit
def store_heads(X, heads, pairs, pair_count, values, HEADS: tl.constexpr):
    """Stores all heads of a block of pairs."""
    inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
    at = X + heads[:, None].to(tl.int64) * pair_count + pairs[None, :]
    tl.store(at, values.to(X.dtype.element_ty), mask=inside)


@triton.jit
def map_heads(
    X, WEIGHT, BIAS, VALUE, SLOPED, OUT, weight_strides, pair_count,
    HEADS: tl.constexpr, OUTS: tl.constexpr, BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    BIASED: tl.constexpr, SOFTPLUS: tl.constexpr, SLOPE: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """One block of pairs of one example; before the map a softplus' slope, or after it softplus."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    if SLOPE:
        # In terms of softplus' value h its slope is 1 - e^-h.
        at = example * HEADS * pair_count
        h = load_heads(VALUE + at, heads, pairs, pair_count, HEADS).to(tl.float32)
        slope = tl.where(h < 1e-3, h - 0.5 * h * h, 1.0 - exp2(-h * LOG2_E))
        x = (x.to(tl.float32) * slope).to(x.dtype)
        store_heads(SLOPED + at, heads, pairs, pair_count, x, HEADS)
    inside = (outs < OUTS)[:, None] & (heads < HEADS)[None, :]
    at = outs[:, None] * weight_strides[0] + heads[None, :] * weight_strides[1]
    u = dot(tl.load(WEIGHT + at, mask=inside, other=0.0).to(x.dtype), x, IEEE)
    if BIASED:
        u += tl.load(BIAS + outs, mask=outs < OUTS, other=0.0).to(tl.float32)[:, None]
    if SOFTPLUS:
        value, _ = softplus_and_slope(u, IEEE)
        u = value * LN2
    store_heads(OUT + example * OUTS * pair_count, outs, pairs, pair_count, u, OUTS)


@triton.jit
def load_two(X, heads, pairs, pair_count, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Two numbers for each pair that lie side by side, read as one in half precision."""
    if tl.float32 == HALF:
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        at = X + 2 * (heads[:, None].to(tl.int64) * pair_count + pairs[None, :])
        return tl.load(at, inside, other=0.0), tl.load(at + 1, inside, other=0.0)
    else:
        x = load_heads(X, heads, pairs, pair_count, HEADS).to(tl.uint32, bitcast=True)
        low = (x & 0xFFFF).to(tl.uint16).to(HALF, bitcast=True)
        return low, (x >> 16).to(tl.uint16).to(HALF, bitcast=True)


@triton.jit
def load_weight(WEIGHT, outs, heads, strides, HEADS: tl.constexpr):
    """A square part of a weight."""
    inside = (outs < HEADS)[:, None] & (heads < HEADS)[None, :]
    at = outs[:, None] * strides[0] + heads[None, :] * strides[1]
    return tl.load(WEIGHT + at, mask=inside, other=0.0)


@triton.jit
def lift_heads(
    X, WEIGHT, BIAS, OUT, weight_strides, pair_count,
    HEADS: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Two maps of one block of pairs of one example, then softplus; results side by side."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads = tl.arange(0, BH)
    example = tl.program_id(1).to(tl.int64)
    x = load_heads(X + example * HEADS * pair_count, heads, pairs, pair_count, HEADS)
    half = HEADS * weight_strides[0]
    w1 = load_weight(WEIGHT, heads, heads, weight_strides, HEADS).to(x.dtype)
    w2 = load_weight(WEIGHT + half, heads, heads, weight_strides, HEADS).to(x.dtype)
    b1 = tl.load(BIAS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    b2 = tl.load(BIAS + HEADS + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    v1, _ = softplus_and_slope(dot(w1, x, IEEE) + b1[:, None], IEEE)
    v2, _ = softplus_and_slope(dot(w2, x, IEEE) + b2[:, None], IEEE)
    if IEEE:
        inside = (heads < HEADS)[:, None] & (pairs < pair_count)[None, :]
        at = (example * HEADS + heads[:, None].to(tl.int64)) * pair_count + pairs[None, :]
        tl.store(OUT + 2 * at, v1 * LN2, mask=inside)
        tl.store(OUT + 2 * at + 1, v2 * LN2, mask=inside)
    else:
        both = pack(v1 * LN2, v2 * LN2, x.dtype).to(tl.int32, bitcast=True)
        store_heads(OUT + example * HEADS * pair_count, heads, pairs, pair_count, both, HEADS)


@triton.jit
def lift_heads_backward(
    DLIFT, WEIGHT, DX, weight_strides, pair_count,
    HEADS: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """The gradient of what two maps were applied to."""
    pairs = tl.program_id(0) * BP + tl.arange(0, BP)
    heads = tl.arange(0, BH)
    HALF: tl.constexpr = DX.dtype.element_ty
    at = tl.program_id(1).to(tl.int64) * HEADS * pair_count
    start = DLIFT + at * 2 if IEEE else DLIFT + at
    du1, du2 = load_two(start, heads, pairs, pair_count, HEADS, HALF)
    half = HEADS * weight_strides[0]
    w1 = load_weight(WEIGHT, heads, heads, weight_strides, HEADS).to(HALF)
    w2 = load_weight(WEIGHT + half, heads, heads, weight_strides, HEADS).to(HALF)
    dx = dot(tl.trans(w1), du1, IEEE) + dot(tl.trans(w2), du2, IEEE)
    store_heads(DX + at, heads, pairs, pair_count, dx, HEADS)


@triton.jit
def sum_products(
    X, Y, SUMS, pair_count, blocks,
    HEADS: tl.constexpr, OUTS: tl.constexpr, BH: tl.constexpr, BO: tl.constexpr, BP: tl.constexpr,
    PAIRED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Sums over several blocks of pairs of one example, of products of each row of Y with X and 1.

    The last column of sums is that of Y itself. If paired, Y has two numbers side by side.
    """
    heads, outs = tl.arange(0, BH), tl.arange(0, BO)
    example = tl.program_id(1).to(tl.int64)
    X += example * HEADS * pair_count
    Y += example * OUTS * pair_count * (2 if PAIRED and IEEE else 1)
    sums = tl.zeros([BO, BH], tl.float32)
    more = tl.zeros([BO, BH], tl.float32)
    for block in range(blocks):
        pairs = (tl.program_id(0) * blocks + block) * BP + tl.arange(0, BP)
        x = load_heads(X, heads, pairs, pair_count, HEADS)
        x = tl.where((heads == HEADS)[:, None], 1.0, x).to(x.dtype)
        if PAIRED:
            y, second = load_two(Y, outs, pairs, pair_count, OUTS, x.dtype)
            more += dot(second, tl.trans(x), IEEE)
        else:
            y = load_heads(Y, outs, pairs, pair_count, OUTS)
        sums += dot(y, tl.trans(x), IEEE)
    part = example * tl.num_programs(0) + tl.program_id(0)
    inside = (outs < OUTS)[:, None] & (heads <= HEADS)[None, :]
    at = (part * OUTS * (2 if PAIRED else 1) + outs)[:, None] * (HEADS + 1) + heads[None, :]
    tl.store(SUMS + at, sums, mask=inside)
    if PAIRED:
        tl.store(SUMS + at + OUTS * (HEADS + 1), more, mask=inside)


launch_map = Launcher(map_heads)
launch_sums = Launcher(sum_products)
launch_lift = Launcher(lift_heads)
launch_lift_backward = Launcher(lift_heads_backward)


def _sizes(outs: int, heads: int, more: int = 0) -> dict[str, int]:
    block, out_block = (max(16, triton.next_power_of_2(size)) for size in (heads + more, outs))
    return {"HEADS": heads, "OUTS": outs, "BH": block, "BO": out_block}


def _map(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    softplus: bool = False,
    value: Tensor | None = None,
    sloped: Tensor | None = None,
) -> Tensor:
    batch, heads, n, m = x.shape
    out = x.new_empty(batch, len(weight), n, m)
    launch_map(
        (triton.cdiv(n * m, PAIRS), batch),
        (x, weight, weight if bias is None else bias, x if value is None else value,
         x if sloped is None else sloped, out),
        (weight.stride(), n * m),
        **_sizes(len(weight), heads), BP=PAIRS, BIASED=bias is not None, SOFTPLUS=softplus,
        SLOPE=value is not None, IEEE=x.dtype == torch.float32, num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def mapped(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    """A linear map over heads, in the precision of `h`; followed by softplus if asked."""
    return _map(h.contiguous(), weight, bias, softplus)


def mapped_backward(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tensor, weight and bias, the latter two in float32."""
    h, dout = h.contiguous(), dout.contiguous()
    if softplus:
        sloped = torch.empty_like(dout)
        dh = _map(dout, weight.T, value=out, sloped=sloped)
        dout = sloped
    else:
        dh = _map(dout, weight.T)
    return dh, *_sums(h, dout, paired=False)


def _sums(h: Tensor, dout: Tensor, paired: bool) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias in float32."""
    batch, heads, n, m = h.shape
    outs = dout.shape[1]
    all_blocks = triton.cdiv(n * m, SUMMED_PAIRS)
    blocks = triton.cdiv(all_blocks * batch, PROGRAMS)
    programs = triton.cdiv(all_blocks, blocks)
    rows = 2 * outs if paired else outs
    parts = h.new_empty(batch * programs, rows, heads + 1, dtype=torch.float32)
    launch_sums(
        (programs, batch), (h, dout, parts), (n * m, blocks),
        **_sizes(outs, heads, more=1), BP=SUMMED_PAIRS, PAIRED=paired,
        IEEE=h.dtype == torch.float32, num_warps=SUMMED_WARPS,
    )  # fmt: skip
    sums = parts.sum(0)
    return sums[:, :heads].clone(), sums[:, heads].clone()


def lifted_by_heads(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One or two maps over heads with softplus, their results side by side for each pair."""
    batch, heads, n, m = h.shape
    if len(weight) == heads:
        return mapped(h, weight, bias, True)
    h = h.contiguous()
    out = h.new_empty(batch, heads, n, 2 * m)
    launch_lift(
        (triton.cdiv(n * m, PAIRS), batch),
        (h, weight, bias, _packed(out)),
        (weight.stride(), n * m),
        **_square(heads), BP=PAIRS, IEEE=h.dtype == torch.float32, num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return out


def lifted_by_heads_backward(
    h: Tensor, weight: Tensor, dlift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tensor, weight and bias, for the gradient before softplus."""
    batch, heads, n, m = h.shape
    if len(weight) == heads:
        return mapped_backward(h, weight, h, dlift, False)
    h, dlift = h.contiguous(), _packed(dlift)
    dh = torch.empty_like(h)
    launch_lift_backward(
        (triton.cdiv(n * m, PAIRS), batch),
        (dlift, weight, dh),
        (weight.stride(), n * m),
        **_square(heads), BP=PAIRS, IEEE=h.dtype == torch.float32, num_warps=PAIRS_WARPS,
    )  # fmt: skip
    return dh, *_sums(h, dlift, paired=True)


def _square(heads: int) -> dict[str, int]:
    return {"HEADS": heads, "BH": max(16, triton.next_power_of_2(heads))}


def _packed(lift: Tensor) -> Tensor:
    """Two half-precision numbers side by side as one of 32 bits."""
    return lift if lift.dtype == torch.float32 else lift.view(torch.int32)


@torch.library.custom_op("babn::head_map", mutates_args=())
def head_map(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    """A linear map over heads, in the precision of `h`; followed by softplus if asked."""
    return mapped(h, weight, bias, softplus)


@head_map.register_fake
def _(h: Tensor, weight: Tensor, bias: Tensor, softplus: bool) -> Tensor:
    return h.new_empty(h.shape[0], weight.shape[0], *h.shape[2:])


@torch.library.custom_op("babn::head_map_backward", mutates_args=())
def head_map_backward(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tensor, weight and bias, the latter two in float32."""
    return mapped_backward(h, weight, out, dout, softplus)


@head_map_backward.register_fake
def _(
    h: Tensor, weight: Tensor, out: Tensor, dout: Tensor, softplus: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dweight = torch.empty_like(weight, dtype=torch.float32)
    return h.new_empty(h.shape), dweight, dweight.new_empty(len(weight))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, weight, bias, ctx.softplus = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(h, weight, output if ctx.softplus else h)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    h, weight, out = ctx.saved_tensors
    dh, dweight, dbias = head_map_backward(h, weight, out, dout, ctx.softplus)
    return dh, dweight.to(weight.dtype), dbias.to(ctx.bias_dtype), None


head_map.register_autograd(_backward, setup_context=_setup)
