"""Gradients of the variables of keys that `babn.kernels.key_draw` draws."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from babn.kernels.key_draw import (
    LARGEST_K,
    SHARE,
    SUM_OPTIONS,
    launch_over_shares,
    load_keys,
    load_network,
    log_exponential,
)
from babn.kernels.key_inputs import KeyNoise
from babn.kernels.launch import Launcher, Types, ceil_div
from babn.kernels.special import LN2, SMALLEST_K, log_moment_slope
from babn.kernels.tiles import keys_seen

SLOPE_OPTIONS = *SUM_OPTIONS, "HAS_KL", "IS_TRUNCATED", "HAS_OWN_MOMENT"


@triton.jit
def log_mean_factor_slope(t, HAS_OWN_MOMENT: tl.constexpr):
    """The derivative of the natural logarithm of the mean factor."""
    y = 1.0 / (1.0 + t)
    return log_moment_slope(t, y, tl.log2(y), HAS_OWN_MOMENT)


@triton.jit
def slopes_of(
    draw, keys, seen,
    HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """Minus the gradient of log k, zero where k is clamped; and the scales."""
    U, SCALE, DBIAS, DNUMBERS, first, groups, m, level = draw
    scale = tl.load(SCALE + keys, mask=seen, other=1.0)
    dscale = tl.zeros_like(scale)
    if HAS_KL:
        dscale = tl.load(DNUMBERS + keys, mask=seen, other=0.0)
    loc_slope = log_mean_factor_slope(level * scale, HAS_OWN_MOMENT)
    for group in range(groups):
        place = (first + group) * m + keys
        g = log_exponential(tl.load(U + place, mask=seen, other=0.5), IS_TRUNCATED) * LN2
        dscale += tl.load(DBIAS + place, mask=seen, other=0.0) * level * (g - loc_slope)
    free = (scale > 1.0 / LARGEST_K) & (scale < 1.0 / SMALLEST_K) & seen
    return tl.where(free, dscale * scale, 0.0), scale


@triton.jit
def slopes_of_range(
    K, SEEN, draw, mean, columns, begin, last, stride, m,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """The sum of slopes, and that of keys relative to their mean times slope and scale."""
    slopes = tl.zeros([BLOCK_N], tl.float32)
    drift = tl.zeros([BLOCK_D], tl.float32)
    for start in range(begin, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, HAS_MASK)
        slope, scale = slopes_of(draw, keys, seen, HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT)
        k = load_keys(K, keys, columns, stride, seen, HEAD_DIM).to(tl.float32)
        slopes += slope
        drift += tl.sum((k - mean[None, :]) * (slope * scale)[:, None], 0)
    return tl.sum(slopes, 0), drift


@triton.jit
def sum_slopes(
    K, U, SEEN, SCALE, STATS, DBIAS, DNUMBERS, SUMS, k_batch, k_head, k_row, key_heads, groups, m,
    level,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, SHARE: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr,
    HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """Stores the sums of slopes of a share of the keys."""
    level = tl.cast(level, tl.float32)
    plane = tl.program_id(0).to(tl.int64)
    columns, begin = tl.arange(0, BLOCK_D), tl.program_id(1) * SHARE
    K += plane // key_heads * k_batch + plane % key_heads * k_head
    SEEN += plane // key_heads * m
    mean = tl.load(STATS + plane * (BLOCK_D + 2) + columns)
    first = plane * groups
    draw = (U, SCALE + plane * m, DBIAS, DNUMBERS + plane * m, first, groups, m, level)
    slopes, drift = slopes_of_range(
        K, SEEN, draw, mean, columns, begin, tl.minimum(begin + SHARE, m), k_row, m,
        HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK, HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT,
    )  # fmt: skip
    SUMS += (plane * tl.num_programs(1) + tl.program_id(1)) * (BLOCK_D + 2)
    tl.store(SUMS + columns, drift)
    tl.store(SUMS + BLOCK_D, slopes)


@triton.jit
def draw_backward(
    K, U, SEEN, PARAMETERS, SCALE, STATS, DBIAS, DNUMBERS, SUMS, DK, PARTS,
    k_batch, k_head, k_row, key_heads, groups, m, size, rho, level,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, SHARE: tl.constexpr, IS_WHOLE: tl.constexpr, HAS_MASK: tl.constexpr,
    IS_CENTRED: tl.constexpr, HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr,
    HAS_OWN_MOMENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient of a share of the keys; parts of those of the MLP and the log shape.

    The gradient through the mean key is `drift`, that through the mean energy `common`.
    """
    rho, level = tl.cast(rho, tl.float32), tl.cast(level, tl.float32)
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K += batch * k_batch + head * k_head
    DK += (batch * m * key_heads + head) * HEAD_DIM
    SEEN += batch * m
    SCALE, STATS = SCALE + plane * m, STATS + plane * (BLOCK_D + 2)
    DNUMBERS += plane * m
    draw = (U, SCALE, DBIAS, DNUMBERS, plane * groups, groups, m, level)
    columns, units = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    mean, count = tl.load(STATS + columns), tl.load(STATS + BLOCK_D + 1)
    to_energy = -2.0 / tl.load(STATS + BLOCK_D)
    factor = rho * tl.exp(tl.load(PARAMETERS).to(tl.float32))
    drift = tl.zeros([BLOCK_D], tl.float32)
    common = 0.0
    if IS_CENTRED:
        if IS_WHOLE:
            common, drift = slopes_of_range(
                K, SEEN, draw, mean, columns, 0, m, k_row, m,
                HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK, HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT,
            )  # fmt: skip
        else:
            SUMS += plane * tl.num_programs(1) * (BLOCK_D + 2)
            for _ in range(tl.num_programs(1)):
                drift += tl.load(SUMS + columns)
                common += tl.load(SUMS + BLOCK_D)
                SUMS += BLOCK_D + 2
        drift *= to_energy * factor / count
        common /= count
    slopes = tl.zeros([BLOCK_N], tl.float32)
    if HAS_KL:
        w1, b1, w2, _ = load_network(PARAMETERS, columns, units, HEAD_DIM, HIDDEN)
        dw1 = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        db1 = tl.zeros([BLOCK_H], tl.float32)
        dw2 = tl.zeros([BLOCK_H], tl.float32)
        db2 = tl.zeros([BLOCK_N], tl.float32)
    begin = tl.program_id(1) * SHARE
    for start in range(begin, tl.minimum(begin + SHARE, m), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, HAS_MASK)
        k = load_keys(K, keys, columns, k_row, seen, HEAD_DIM)
        slope, scale = slopes_of(draw, keys, seen, HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT)
        slopes += slope
        each = (slope * scale * factor - common) * to_energy
        dk = (k.to(tl.float32) - mean[None, :]) * each[:, None] - drift[None, :]
        dk = tl.where(seen[:, None], dk, 0.0)
        if HAS_KL:
            dlogits = tl.load(DNUMBERS + size + keys, mask=seen, other=0.0)
            hidden = tl.dot(k, tl.trans(w1.to(k.dtype)), input_precision=PRECISION) + b1[None, :]
            dhidden = tl.where(hidden > 0, dlogits[:, None] * w2[None, :], 0.0)
            dw2 += tl.sum(tl.maximum(hidden, 0.0) * dlogits[:, None], 0)
            db2 += dlogits
            db1 += tl.sum(dhidden, 0)
            wide = dhidden.to(k.dtype)
            dk = tl.dot(wide, w1.to(k.dtype), dk, input_precision=PRECISION)
            dw1 = tl.dot(tl.trans(wide), k, dw1, input_precision=PRECISION)
        place = DK + keys[:, None] * (key_heads * HEAD_DIM) + columns[None, :]
        inside = seen[:, None] & (columns < HEAD_DIM)[None, :]
        dk += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, dk.to(DK.dtype.element_ty), mask=inside)
    PARTS += (plane * tl.num_programs(1) + tl.program_id(1)) * (HIDDEN * (HEAD_DIM + 2) + 2)
    tl.store(PARTS, -tl.sum(slopes, 0))
    if HAS_KL:
        tl.store(PARTS + 1, tl.sum(db2, 0))
        real = units < HIDDEN
        tl.store(PARTS + 2 + units, db1, mask=real)
        tl.store(PARTS + 2 + HIDDEN + units, dw2, mask=real)
        inside = real[:, None] & (columns < HEAD_DIM)[None, :]
        place = PARTS + 2 + 2 * HIDDEN + units[:, None] * HEAD_DIM + columns[None, :]
        tl.store(place, dw1, mask=inside)


launch_slopes, launch_backward = Launcher(sum_slopes), Launcher(draw_backward)


def draw_backward_into(
    dk: Tensor, key: Tensor, heads: int, u: Tensor, seen: Tensor | None, parameters: Tensor,
    numbers: Tensor, stats: Tensor, dbias: Tensor, dnumbers: Tensor, noise: KeyNoise,
    options: dict[str, Any], types: Types,
) -> Tensor:  # fmt: skip
    """Adds to the gradient of keys, and returns that of the parameters in float32."""
    batch, key_heads, m, _ = key.shape
    grid, strides = (batch * key_heads, ceil_div(m, SHARE)), key.stride()[:3]
    parts = u.new_empty(grid[0] * grid[1], max(parameters.shape[0], 2))
    shown, sizes = key if seen is None else seen, (key_heads, heads // key_heads, m)
    sums = launch_over_shares(
        launch_slopes, SLOPE_OPTIONS, grid, (key, u, shown, numbers, stats, dbias, dnumbers),
        (*strides, *sizes, noise.level), options, types, u,
    )  # fmt: skip
    launch_backward(
        grid,
        (key, u, shown, parameters, numbers, stats, dbias, dnumbers, sums, dk, parts),
        (*strides, *sizes, dnumbers.stride(0), noise.rho, noise.level),
        options,
        types,
    )
    return parts.sum(0) if noise.with_kl else parts[:, :1].sum(0)
