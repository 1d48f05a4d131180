"""Variables of keys: their shapes, a sample, and logits of their prior, in one kernel each way.

Computes what `babn.attention.keys.KeyBeliefMethod` defines, with the keys read twice and nothing
stored that is as large as they are. A program has a share of the keys of one head of one example;
with several shares, means over all keys take a kernel of their own.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.attention import keys as reference
from babn.kernels.launch import CACHED_LAUNCHES, Launcher, block
from babn.kernels.special import (
    LARGEST_NOISE,
    LN2,
    LOG2_E,
    moment_rest,
    moment_rest_slope,
    stirling_rest,
    stirling_rest_slope,
)

SMALLEST_K = tl.constexpr(reference.SMALLEST_K)
LARGEST_K = tl.constexpr(reference.LARGEST_K)
SMALLEST_ENERGY = tl.constexpr(reference.SMALLEST_ENERGY)

SHARE, KEYS, WARPS = 256, 64, 4
"""Keys of a program, keys in a block with heads of 128 bytes, and warps of a program."""


class Network(NamedTuple):
    """The MLP of the prior."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor

    @property
    def size(self) -> int:
        """Number of its parameters."""
        return sum(x.numel() for x in self)


@triton.jit
def log_moment(t, OWN: tl.constexpr):
    """Logarithm to base 2 of the mean factor at t: that of the truncated noise, or Gamma(1 + t)."""
    y = 1.0 / (1.0 + t)
    log = -tl.log2(y)
    if OWN:
        return t * LARGEST_NOISE - log + moment_rest(y)
    else:
        return (t + 0.5) * log - t * LOG2_E + stirling_rest(y)


@triton.jit
def log_moment_slope(t, OWN: tl.constexpr):
    """The derivative of the natural logarithm of the mean factor."""
    y = 1.0 / (1.0 + t)
    if OWN:
        return LARGEST_NOISE * LN2 - y - moment_rest_slope(y) * y * y
    else:
        return (t + 0.5) * y - tl.log2(y) * LN2 - 1.0 - stirling_rest_slope(y) * y * y


@triton.jit
def log_exponential(u, IS_TRUNCATED: tl.constexpr):
    """Logarithm to base 2 of a standard exponential, by its quantile at u."""
    if IS_TRUNCATED:
        rest = 0.9 - 0.8 * u
        value = -tl.log2(rest)
    else:
        u = tl.maximum(u, 1.1754944e-38)
        series = u * (1.4426950 + u * (0.72134752 + u * (0.48089835 + 0.36067376 * u)))
        value = tl.where(u < 0.01, series, -tl.log2(tl.maximum(1.0 - u, 5.9604645e-08)))
    return tl.log2(value * LN2)


@triton.jit
def load_keys(K, keys, columns, stride, seen, HEAD_DIM: tl.constexpr):
    """Keys as a block, with zeros at those that no query sees."""
    inside = seen[:, None] & (columns < HEAD_DIM)[None, :]
    return tl.load(K + keys[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def load_seen(SEEN, keys, m, HAS_MASK: tl.constexpr):
    """The keys that any query sees."""
    seen = keys < m
    if HAS_MASK:
        seen = tl.load(SEEN + keys, mask=seen, other=0) != 0
    return seen


@triton.jit
def load_network(NET, columns, units, HEAD_DIM: tl.constexpr, HIDDEN: tl.constexpr):
    """Weights and biases of the MLP, zero beyond its sizes."""
    W1, B1, W2, B2 = NET
    inside = (units < HIDDEN)[:, None] & (columns < HEAD_DIM)[None, :]
    w1 = tl.load(W1 + units[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)
    b1 = tl.load(B1 + units, mask=units < HIDDEN, other=0.0).to(tl.float32)
    w2 = tl.load(W2 + units, mask=units < HIDDEN, other=0.0).to(tl.float32)
    return w1, b1, w2, tl.load(B2).to(tl.float32)


@triton.jit
def sums_of_range(
    K, SEEN, origin, columns, first, last, stride, m,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Sums of keys and of their squared lengths relative to `origin`, and the number of keys."""
    total = tl.zeros([BLOCK_D], tl.float32)
    squares = tl.zeros([BLOCK_N], tl.float32)
    count = tl.zeros([BLOCK_N], tl.float32)
    for start in range(first, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        k = load_keys(K, keys, columns, stride, seen, HEAD_DIM).to(tl.float32)
        k = tl.where(seen[:, None], k - origin[None, :], 0.0)
        total += tl.sum(k, 0)
        squares += tl.sum(k * k, 1)
        count += seen.to(tl.float32)
    return total, tl.sum(squares, 0), tl.sum(count, 0)


@triton.jit
def sum_keys(
    K, SEEN, SUMS, sizes, strides,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, SHARE: tl.constexpr,
    HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Stores the sums of a share of the keys."""
    key_heads, _, m = sizes
    plane = tl.program_id(0).to(tl.int64)
    K += plane // key_heads * strides[0] + plane % key_heads * strides[1]
    SEEN += plane // key_heads * m
    columns, first = tl.arange(0, BLOCK_D), tl.program_id(1) * SHARE
    origin = tl.load(K + columns, mask=columns < HEAD_DIM, other=0.0).to(tl.float32)
    total, squares, count = sums_of_range(
        K, SEEN, origin, columns, first, tl.minimum(first + SHARE, m), strides[2], m,
        HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK,
    )  # fmt: skip
    SUMS += (plane * tl.num_programs(1) + tl.program_id(1)) * (BLOCK_D + 2)
    tl.store(SUMS + columns, total)
    tl.store(SUMS + BLOCK_D, squares)
    tl.store(SUMS + BLOCK_D + 1, count)


@triton.jit
def draw_forward(
    K, U, SEEN, LOG_SHAPE, TYPICAL, NET, SUMS, BIAS, SCALE, LOC, LOGITS, STATS,
    sizes, strides, numbers,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, SHARE: tl.constexpr, IS_WHOLE: tl.constexpr, HAS_MASK: tl.constexpr,
    IS_CENTRED: tl.constexpr, HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr,
    HAS_OWN_MOMENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Log factors to base 2, scales, locations and logits of a share of the keys.

    STATS gets the mean key, the mean energy and the number of keys.
    """
    key_heads, groups, m = sizes
    rho, level = numbers
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K += batch * strides[0] + head * strides[1]
    SEEN += batch * m
    SCALE, LOC, LOGITS = SCALE + plane * m, LOC + plane * m, LOGITS + plane * m
    columns, units = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    mean = tl.zeros([BLOCK_D], tl.float32)
    count = 1.0
    if IS_CENTRED:
        origin = tl.load(K + columns, mask=columns < HEAD_DIM, other=0.0).to(tl.float32)
        if IS_WHOLE:
            total, squares, count = sums_of_range(
                K, SEEN, origin, columns, 0, m, strides[2], m, HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK
            )
        else:
            SUMS += plane * tl.num_programs(1) * (BLOCK_D + 2)
            total = tl.zeros([BLOCK_D], tl.float32)
            squares = 0.0
            count = 0.0
            for _ in range(tl.num_programs(1)):
                total += tl.load(SUMS + columns)
                squares += tl.load(SUMS + BLOCK_D)
                count += tl.load(SUMS + BLOCK_D + 1)
                SUMS += BLOCK_D + 2
        count = tl.maximum(count, 1.0)
        total /= count
        mean = origin + total
        average = tl.maximum(squares / count - tl.sum(total * total, 0), 0.0)
    else:
        average = tl.load(TYPICAL + head * groups).to(tl.float32)
    equal = average <= SMALLEST_ENERGY
    if tl.program_id(1) == 0:
        STATS += plane * (BLOCK_D + 2)
        tl.store(STATS + columns, mean)
        tl.store(STATS + BLOCK_D, tl.where(equal, float("inf"), average))
        tl.store(STATS + BLOCK_D + 1, count)
    factor = rho * tl.exp(tl.load(LOG_SHAPE).to(tl.float32))
    if HAS_KL:
        w1, b1, w2, b2 = load_network(NET, columns, units, HEAD_DIM, HIDDEN)
    first = tl.program_id(1) * SHARE
    for start in range(first, tl.minimum(first + SHARE, m), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < m
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        k = load_keys(K, keys, columns, strides[2], inside, HEAD_DIM)
        centred = k.to(tl.float32) - mean[None, :]
        energy = tl.where(seen, tl.sum(centred * centred, 1), 0.0)
        shape = tl.where(equal, 1.0, energy / average) * factor
        scale = 1.0 / tl.minimum(tl.maximum(shape, SMALLEST_K), LARGEST_K)
        tl.store(SCALE + keys, scale, mask=inside)
        if HAS_KL:
            tl.store(LOC + keys, -log_moment(scale, HAS_OWN_MOMENT) * LN2, mask=inside)
            hidden = tl.dot(k, tl.trans(w1.to(k.dtype)), input_precision=PRECISION) + b1[None, :]
            logits = tl.sum(tl.maximum(hidden, 0.0) * w2[None, :], 1) + b2
            tl.store(LOGITS + keys, logits, mask=inside)
        loc = -log_moment(level * scale, HAS_OWN_MOMENT)
        for group in range(groups):
            place = (plane * groups + group) * m + keys
            u = tl.load(U + place, mask=inside, other=0.5)
            log_e = loc + level * scale * log_exponential(u, IS_TRUNCATED)
            tl.store(BIAS + place, tl.where(seen, log_e, float("-inf")), mask=inside)


@triton.jit
def slopes_of(
    U, SCALE, DBIAS, DSCALE, DLOC, keys, seen, first, groups, m, level,
    HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """Minus the gradient of log k, zero where k is clamped; and the scales."""
    scale = tl.load(SCALE + keys, mask=seen, other=1.0)
    dscale = tl.zeros_like(scale)
    if HAS_KL:
        dscale = tl.load(DSCALE + keys, mask=seen, other=0.0)
        dloc = tl.load(DLOC + keys, mask=seen, other=0.0)
        dscale -= dloc * log_moment_slope(scale, HAS_OWN_MOMENT)
    loc_slope = log_moment_slope(level * scale, HAS_OWN_MOMENT)
    for group in range(groups):
        place = (first + group) * m + keys
        g = log_exponential(tl.load(U + place, mask=seen, other=0.5), IS_TRUNCATED) * LN2
        dscale += tl.load(DBIAS + place, mask=seen, other=0.0) * level * (g - loc_slope)
    free = (scale > 1.0 / LARGEST_K) & (scale < 1.0 / SMALLEST_K) & seen
    return tl.where(free, dscale * scale, 0.0), scale


@triton.jit
def slopes_of_range(
    K, U, SEEN, SCALE, DBIAS, DSCALE, DLOC, mean, columns, begin, last, stride, first, groups, m,
    level,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """The sum of slopes, and that of keys relative to their mean times slope and scale."""
    slopes = tl.zeros([BLOCK_N], tl.float32)
    drift = tl.zeros([BLOCK_D], tl.float32)
    for start in range(begin, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        slope, scale = slopes_of(
            U, SCALE, DBIAS, DSCALE, DLOC, keys, seen, first, groups, m, level,
            HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT,
        )  # fmt: skip
        k = load_keys(K, keys, columns, stride, seen, HEAD_DIM).to(tl.float32)
        slopes += slope
        drift += tl.sum((k - mean[None, :]) * (slope * scale)[:, None], 0)
    return tl.sum(slopes, 0), drift


@triton.jit
def sum_slopes(
    K, U, SEEN, SCALE, STATS, DBIAS, DSCALE, DLOC, SUMS, sizes, strides, level,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, SHARE: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr,
    HAS_OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """Stores the sums of slopes of a share of the keys."""
    key_heads, groups, m = sizes
    plane = tl.program_id(0).to(tl.int64)
    columns, begin = tl.arange(0, BLOCK_D), tl.program_id(1) * SHARE
    slopes, drift = slopes_of_range(
        K + plane // key_heads * strides[0] + plane % key_heads * strides[1], U,
        SEEN + plane // key_heads * m, SCALE + plane * m, DBIAS, DSCALE + plane * m,
        DLOC + plane * m, tl.load(STATS + plane * (BLOCK_D + 2) + columns), columns, begin,
        tl.minimum(begin + SHARE, m), strides[2], plane * groups, groups, m, level,
        HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK, HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT,
    )  # fmt: skip
    SUMS += (plane * tl.num_programs(1) + tl.program_id(1)) * (BLOCK_D + 2)
    tl.store(SUMS + columns, drift)
    tl.store(SUMS + BLOCK_D, slopes)


@triton.jit
def draw_backward(
    K, U, SEEN, LOG_SHAPE, NET, SCALE, STATS, DBIAS, DSCALE, DLOC, DLOGITS, SUMS, DK, PARTS,
    sizes, strides, numbers,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, SHARE: tl.constexpr, IS_WHOLE: tl.constexpr, HAS_MASK: tl.constexpr,
    IS_CENTRED: tl.constexpr, HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr,
    HAS_OWN_MOMENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient of a share of the keys; parts of those of the MLP and the log shape.

    The gradient through the mean key is `drift`, that through the mean energy `common`.
    """
    key_heads, groups, m = sizes
    k_strides, dk_strides = strides
    rho, level = numbers
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K += batch * k_strides[0] + head * k_strides[1]
    DK += batch * dk_strides[0] + head * dk_strides[1]
    SEEN += batch * m
    SCALE, STATS = SCALE + plane * m, STATS + plane * (BLOCK_D + 2)
    DSCALE, DLOC, DLOGITS = DSCALE + plane * m, DLOC + plane * m, DLOGITS + plane * m
    columns, units = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    mean, count = tl.load(STATS + columns), tl.load(STATS + BLOCK_D + 1)
    to_energy = -2.0 / tl.load(STATS + BLOCK_D)
    factor = rho * tl.exp(tl.load(LOG_SHAPE).to(tl.float32))
    drift = tl.zeros([BLOCK_D], tl.float32)
    common = 0.0
    if IS_CENTRED:
        if IS_WHOLE:
            common, drift = slopes_of_range(
                K, U, SEEN, SCALE, DBIAS, DSCALE, DLOC, mean, columns, 0, m, k_strides[2],
                plane * groups, groups, m, level,
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
        w1, b1, w2, _ = load_network(NET, columns, units, HEAD_DIM, HIDDEN)
        dw1 = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        db1 = tl.zeros([BLOCK_H], tl.float32)
        dw2 = tl.zeros([BLOCK_H], tl.float32)
        db2 = tl.zeros([BLOCK_N], tl.float32)
    begin = tl.program_id(1) * SHARE
    for start in range(begin, tl.minimum(begin + SHARE, m), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        k = load_keys(K, keys, columns, k_strides[2], seen, HEAD_DIM)
        slope, scale = slopes_of(
            U, SCALE, DBIAS, DSCALE, DLOC, keys, seen, plane * groups, groups, m, level,
            HAS_KL, IS_TRUNCATED, HAS_OWN_MOMENT,
        )  # fmt: skip
        slopes += slope
        each = (slope * scale * factor - common) * to_energy
        dk = (k.to(tl.float32) - mean[None, :]) * each[:, None] - drift[None, :]
        dk = tl.where(seen[:, None], dk, 0.0)
        if HAS_KL:
            dlogits = tl.load(DLOGITS + keys, mask=seen, other=0.0)
            hidden = tl.dot(k, tl.trans(w1.to(k.dtype)), input_precision=PRECISION) + b1[None, :]
            dhidden = tl.where(hidden > 0, dlogits[:, None] * w2[None, :], 0.0)
            dw2 += tl.sum(tl.maximum(hidden, 0.0) * dlogits[:, None], 0)
            db2 += dlogits
            db1 += tl.sum(dhidden, 0)
            wide = dhidden.to(k.dtype)
            dk = tl.dot(wide, w1.to(k.dtype), dk, input_precision=PRECISION)
            dw1 = tl.dot(tl.trans(wide), k, dw1, input_precision=PRECISION)
        place = DK + keys[:, None] * dk_strides[2] + columns[None, :]
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


launch_sums = Launcher(sum_keys)
launch_forward = Launcher(draw_forward)
launch_slopes = Launcher(sum_slopes)
launch_backward = Launcher(draw_backward)


class DrawSettings(NamedTuple):
    """Settings of a draw.

    Attributes:
        rho: Shape of the posterior before learning.
        level: Factor of the noise.
        truncated: Whether the noise is truncated.
        own_moment: Whether the mean factor is that of the truncated noise.
        centred: Whether shapes are relative to the keys of the call, and not to `typical`.
        with_kl: Whether the KL will be computed.
    """

    rho: float
    level: float
    truncated: bool
    own_moment: bool
    centred: bool
    with_kl: bool


def options_of(key: Tensor, network: Network, masked: bool, noise: DrawSettings) -> dict[str, Any]:
    """Constants and compile options."""
    highest = torch.get_float32_matmul_precision() == "highest"
    hidden, size = network.w1.shape
    return _options(key.shape[2], size, key.element_size(), hidden, masked, noise, highest)


@lru_cache(CACHED_LAUNCHES)
def _options(
    m: int, size: int, width: int, hidden: int, masked: bool, noise: DrawSettings, highest: bool
) -> dict[str, Any]:
    keys = max(16, KEYS * 128 // max(block(size) * width, 128))
    return {
        "HEAD_DIM": size,
        "BLOCK_D": block(size),
        "HIDDEN": hidden,
        "BLOCK_H": block(hidden),
        "BLOCK_N": min(keys, block(m)),
        "SHARE": SHARE,
        "IS_WHOLE": m <= SHARE,
        "HAS_MASK": masked,
        "IS_CENTRED": noise.centred,
        "HAS_KL": noise.with_kl,
        "IS_TRUNCATED": noise.truncated,
        "HAS_OWN_MOMENT": noise.own_moment,
        "PRECISION": "ieee" if highest else "tf32",
        "num_warps": WARPS,
    }


def _launch_sums(
    launch: Launcher, grid: tuple[int, int], tensors: tuple[Any, ...], numbers: tuple[Any, ...],
    options: dict[str, Any], like: Tensor,
) -> Tensor:  # fmt: skip
    """Sums over shares of the keys; empty where one program has all keys, or none are needed."""
    if options["IS_WHOLE"] or not options["IS_CENTRED"]:
        return like
    sums = like.new_empty(*grid, options["BLOCK_D"] + 2, dtype=torch.float32)
    taken = {*launch.kernel.arg_names, "num_warps"}
    given = {name: value for name, value in options.items() if name in taken}
    launch(grid, (*tensors, sums), numbers, **given)
    return sums


def draw(
    key: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor, typical: Tensor,
    network: Network, noise: DrawSettings,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Log factors to base 2, scales, locations, logits, and what backward needs of the keys.

    Args:
        key: Keys of shape (batch, key head, key, size).
        u: Uniform numbers of shape (batch, head, key), contiguous.
        seen: The keys that any query sees, of shape (batch, key), contiguous; all by default.
        log_shape: The logarithm of the layer's shape factor, one number.
        typical: Typical energies of the heads, for shapes that are not relative to the call.
        network: The MLP of the prior.
        noise: Settings.
    """
    batch, key_heads, m, _ = key.shape
    options = options_of(key, network, seen is not None, noise)
    bias = torch.empty_like(u)
    scale = u.new_empty(batch, key_heads, m)
    loc, logits = (torch.empty_like(scale if noise.with_kl else scale[:0]) for _ in range(2))
    stats = u.new_empty(batch, key_heads, options["BLOCK_D"] + 2)
    grid = batch * key_heads, -(-m // SHARE)
    sizes, strides = (key_heads, u.shape[1] // key_heads, m), key.stride()[:3]
    shown = key if seen is None else seen
    sums = _launch_sums(launch_sums, grid, (key, shown), (sizes, strides), options, u)
    launch_forward(
        grid,
        (key, u, shown, log_shape, typical, tuple(network), sums, bias, scale, loc, logits, stats),
        (sizes, strides, (noise.rho, noise.level)),
        **options,
    )
    return bias, scale, loc, logits, stats


def draw_backward_into(
    dk: Tensor, key: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor, network: Network,
    scale: Tensor, stats: Tensor, dbias: Tensor, others: tuple[Tensor, Tensor, Tensor],
    noise: DrawSettings,
) -> Tensor:  # fmt: skip
    """Adds to the gradient of keys; returns the gradients of log shape and network in one vector.

    The vector has those of the log shape, `b2`, `b1`, `w2` and `w1`. `others` are the gradients of
    scales, locations and logits.
    """
    batch, key_heads, m, _ = key.shape
    options = options_of(key, network, seen is not None, noise)
    grid = batch * key_heads, -(-m // SHARE)
    parts = scale.new_empty(grid[0] * grid[1], network.size + 1)
    sizes, strides = (key_heads, u.shape[1] // key_heads, m), (key.stride()[:3], dk.stride()[:3])
    shown = key if seen is None else seen
    dscale, dloc, dlogits = others
    tensors = key, u, shown, scale, stats, dbias, dscale, dloc
    numbers = sizes, strides[0], noise.level
    sums = _launch_sums(launch_slopes, grid, tensors, numbers, options, u)
    launch_backward(
        grid,
        (key, u, shown, log_shape, tuple(network), scale, stats, dbias, dscale, dloc, dlogits,
         sums, dk, parts),
        (sizes, strides, (noise.rho, noise.level)),
        **options,
    )  # fmt: skip
    return parts if noise.with_kl else parts[:, :1]
