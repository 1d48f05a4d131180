"""Gradients of the variables of keys that `babn.kernels.key_draw` draws."""

import triton
import triton.language as tl
from torch import Tensor

from babn.kernels import posterior
from babn.kernels.key_draw import (
    LARGEST_K,
    SHARE,
    WARPS,
    Network,
    flags_of,
    launch_over_shares,
    load_keys,
    log_exponential,
)
from babn.kernels.launch import Launcher
from babn.kernels.posterior import SMALLEST_K
from babn.kernels.prior import load_network, network_size
from babn.kernels.settings import KeySettings
from babn.kernels.special import LN2
from babn.kernels.tiles import at_head, dot, keys_seen


@triton.jit
def log_moment_slope(t, OWN: tl.constexpr):
    """The derivative of the natural logarithm of the mean factor."""
    y = 1.0 / (1.0 + t)
    return posterior.log_moment_slope(t, y, tl.log2(y), OWN)


@triton.jit
def slopes_of(variables, size, keys, seen, first, groups, m, level, C: tl.constexpr):
    """Minus the gradient of log k, zero where k is clamped; and the scales."""
    U, SCALE, DBIAS, DNUMBERS = variables
    scale = tl.load(SCALE + keys, mask=seen, other=1.0)
    dscale = tl.zeros_like(scale)
    if C.HAS_KL:
        dscale = tl.load(DNUMBERS + keys, mask=seen, other=0.0)
        dloc = tl.load(DNUMBERS + size + keys, mask=seen, other=0.0)
        dscale -= dloc * log_moment_slope(scale, C.HAS_OWN_MOMENT)
    loc_slope = log_moment_slope(level * scale, C.HAS_OWN_MOMENT)
    for group in range(groups):
        place = (first + group) * m + keys
        g = log_exponential(tl.load(U + place, mask=seen, other=0.5), C.IS_TRUNCATED) * LN2
        dscale += tl.load(DBIAS + place, mask=seen, other=0.0) * level * (g - loc_slope)
    free = (scale > 1.0 / LARGEST_K) & (scale < 1.0 / SMALLEST_K) & seen
    return tl.where(free, dscale * scale, 0.0), scale


@triton.jit
def slopes_of_range(
    K, SEEN, variables, size, mean, columns, begin, last, stride, first, groups, m, level,
    C: tl.constexpr,
):  # fmt: skip
    """The sum of slopes, and that of keys relative to their mean times slope and scale."""
    BLOCK_N: tl.constexpr = C.BLOCK_N
    BLOCK_D: tl.constexpr = C.BLOCK_D
    slopes = tl.zeros([BLOCK_N], tl.float32)
    drift = tl.zeros([BLOCK_D], tl.float32)
    for start in range(begin, last, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, C.HAS_MASK)
        slope, scale = slopes_of(variables, size, keys, seen, first, groups, m, level, C)
        k = load_keys(K, keys, columns, stride, seen, C).to(tl.float32)
        slopes += slope
        drift += tl.sum((k - mean[None, :]) * (slope * scale)[:, None], 0)
    return tl.sum(slopes, 0), drift


@triton.jit
def sum_slopes(inputs, outputs, k_strides, sizes, level, C: tl.constexpr):
    """Stores the sums of slopes of a share of the keys."""
    K, U, SEEN, SCALE, STATS, DBIAS, DNUMBERS = inputs
    (SUMS,) = outputs
    key_heads, groups, m, size = sizes
    plane = tl.program_id(0).to(tl.int64)
    columns, begin = tl.arange(0, C.BLOCK_D), tl.program_id(1) * C.SHARE
    variables = (U, SCALE + plane * m, DBIAS, DNUMBERS + plane * m)
    slopes, drift = slopes_of_range(
        at_head(K, k_strides, plane // key_heads, plane % key_heads),
        SEEN + plane // key_heads * m, variables, size,
        tl.load(STATS + plane * (C.BLOCK_D + 2) + columns), columns, begin,
        tl.minimum(begin + C.SHARE, m), k_strides[2], plane * groups, groups, m, level, C,
    )  # fmt: skip
    SUMS += (plane * tl.num_programs(1) + tl.program_id(1)) * (C.BLOCK_D + 2)
    tl.store(SUMS + columns, drift)
    tl.store(SUMS + C.BLOCK_D, slopes)


@triton.jit
def draw_backward(inputs, network, outputs, k_strides, dk_strides, sizes, numbers, C: tl.constexpr):
    """Adds to the gradient of a share of the keys; parts of those of the MLP and the log shape.

    The gradient through the mean key is `drift`, that through the mean energy `common`.
    """
    BLOCK_N: tl.constexpr = C.BLOCK_N
    BLOCK_D: tl.constexpr = C.BLOCK_D
    BLOCK_H: tl.constexpr = C.BLOCK_H
    K, U, SEEN, LOG_SHAPE, SCALE, STATS, DBIAS, DNUMBERS, SUMS = inputs
    W1, B1, W2 = network
    DK, PARTS = outputs
    key_heads, groups, m, size, own = sizes
    rho, level = numbers
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K, DK = at_head(K, k_strides, batch, head), at_head(DK, dk_strides, batch, head)
    SEEN += batch * m
    STATS += plane * (C.BLOCK_D + 2)
    DNUMBERS += plane * m
    variables = (U, SCALE + plane * m, DBIAS, DNUMBERS)
    columns, units = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_H)
    mean, count = tl.load(STATS + columns), tl.load(STATS + C.BLOCK_D + 1)
    to_energy = -2.0 / tl.load(STATS + C.BLOCK_D)
    factor = rho * tl.exp(tl.load(LOG_SHAPE + own).to(tl.float32))
    drift = tl.zeros([BLOCK_D], tl.float32)
    common = 0.0
    if C.IS_CENTRED:
        if C.IS_WHOLE:
            common, drift = slopes_of_range(
                K, SEEN, variables, size, mean, columns, 0, m, k_strides[2], plane * groups, groups,
                m, level, C,
            )  # fmt: skip
        else:
            SUMS += plane * tl.num_programs(1) * (C.BLOCK_D + 2)
            for _ in range(tl.num_programs(1)):
                drift += tl.load(SUMS + columns)
                common += tl.load(SUMS + C.BLOCK_D)
                SUMS += C.BLOCK_D + 2
        drift *= to_energy * factor / count
        common /= count
    slopes = tl.zeros([BLOCK_N], tl.float32)
    if C.HAS_KL:
        w1, b1, w2 = load_network(W1, B1, W2, columns, units, K.dtype.element_ty, C)
        dw1 = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        db1 = tl.zeros([BLOCK_H], tl.float32)
        dw2 = tl.zeros([BLOCK_H], tl.float32)
        db2 = tl.zeros([BLOCK_N], tl.float32)
    begin = tl.program_id(1) * C.SHARE
    for start in range(begin, tl.minimum(begin + C.SHARE, m), C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, C.HAS_MASK)
        k = load_keys(K, keys, columns, k_strides[2], seen, C)
        slope, scale = slopes_of(variables, size, keys, seen, plane * groups, groups, m, level, C)
        slopes += slope
        each = (slope * scale * factor - common) * to_energy
        dk = (k.to(tl.float32) - mean[None, :]) * each[:, None] - drift[None, :]
        dk = tl.where(seen[:, None], dk, 0.0)
        if C.HAS_KL:
            dlogits = tl.load(DNUMBERS + 2 * size + keys, mask=seen, other=0.0)
            hidden = dot(k, tl.trans(w1), C.PRECISION) + b1[None, :]
            dhidden = tl.where(hidden > 0, dlogits[:, None] * w2[None, :], 0.0)
            dw2 += tl.sum(tl.maximum(hidden, 0.0) * dlogits[:, None], 0)
            db2 += dlogits
            db1 += tl.sum(dhidden, 0)
            wide = dhidden.to(k.dtype)
            dk = dot(wide, w1, C.PRECISION, dk)
            dw1 = dot(tl.trans(wide), k, C.PRECISION, dw1)
        place = DK + keys[:, None] * dk_strides[2] + columns[None, :]
        inside = seen[:, None] & (columns < C.HEAD_DIM)[None, :]
        dk += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, dk.to(DK.dtype.element_ty), mask=inside)
    PARTS += (plane * tl.num_programs(1) + tl.program_id(1)) * (C.HIDDEN * (C.HEAD_DIM + 2) + 2)
    tl.store(PARTS, -tl.sum(slopes, 0))
    if C.HAS_KL:
        tl.store(PARTS + 1, tl.sum(db2, 0))
        real = units < C.HIDDEN
        tl.store(PARTS + 2 + units, db1, mask=real)
        tl.store(PARTS + 2 + C.HIDDEN + units, dw2, mask=real)
        inside = real[:, None] & (columns < C.HEAD_DIM)[None, :]
        place = PARTS + 2 + 2 * C.HIDDEN + units[:, None] * C.HEAD_DIM + columns[None, :]
        tl.store(place, dw1, mask=inside)


launch_slopes, launch_backward = Launcher(sum_slopes), Launcher(draw_backward)


def draw_backward_into(
    dk: Tensor, key: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor, network: Network,
    numbers: Tensor, stats: Tensor, dbias: Tensor, dnumbers: Tensor, settings: KeySettings,
) -> Tensor:  # fmt: skip
    """Adds to the gradient of keys; returns parts of the gradients of log shape and network.

    A row has the parts of the log shape, `b2`, `b1`, `w2` and `w1`; without the KL only the first.
    """
    batch, key_heads, m, _ = key.shape
    flags = flags_of(key, network[0], seen is not None, settings)
    grid, shown = (batch * key_heads, -(-m // SHARE)), key if seen is None else seen
    parts = u.new_empty(grid[0] * grid[1], network_size(network[0]) + 1)
    sizes = key_heads, u.shape[1] // key_heads, m, dnumbers.stride(0)
    sums = launch_over_shares(
        launch_slopes, grid, (key, u, shown, numbers, stats, dbias, dnumbers),
        (key.stride(), sizes, settings.level), flags, u,
    )  # fmt: skip
    launch_backward(
        grid,
        ((key, u, shown, log_shape, numbers, stats, dbias, dnumbers, sums), network[:3],
         (dk, parts)),
        (key.stride(), dk.stride(), (*sizes, settings.own), (settings.rho, settings.level)),
        C=flags, num_warps=WARPS,
    )  # fmt: skip
    return parts if settings.with_kl else parts[:, :1]
