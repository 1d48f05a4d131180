"""Variables of keys: their shapes, a sample, and logits of their prior, in one kernel each way.

Computes what `babn.attention.keys.KeyBeliefRule` defines, with the keys read twice and nothing
stored that is as large as they are. One program has all keys of one head of one example.
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

KEYS, WARPS = 64, 4
"""Keys in a block with heads of 128 bytes, and warps of a program."""


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
def draw_forward(
    K, U, SEEN, LOG_SHAPE, TYPICAL, NET, BIAS, SCALE, LOC, LOGITS, STATS, sizes, strides, numbers,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr, IS_CENTRED: tl.constexpr, HAS_KL: tl.constexpr,
    IS_TRUNCATED: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Log factors to base 2, scales, locations, logits, and the mean key with the mean energy."""
    key_heads, groups, m = sizes
    rho, level = numbers
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K += batch * strides[0] + head * strides[1]
    SEEN += batch * m
    SCALE, LOC, LOGITS, STATS = (
        SCALE + plane * m, LOC + plane * m, LOGITS + plane * m, STATS + plane * (BLOCK_D + 1)
    )  # fmt: skip
    columns, units = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    mean = tl.zeros([BLOCK_D], tl.float32)
    count = tl.zeros([BLOCK_N], tl.float32)
    if IS_CENTRED:
        for start in range(0, m, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            seen = load_seen(SEEN, keys, m, HAS_MASK)
            mean += tl.sum(
                load_keys(K, keys, columns, strides[2], seen, HEAD_DIM).to(tl.float32), 0
            )
            count += seen.to(tl.float32)
        mean /= tl.maximum(tl.sum(count, 0), 1.0)
    tl.store(STATS + columns, mean)
    if HAS_KL:
        w1, b1, w2, b2 = load_network(NET, columns, units, HEAD_DIM, HIDDEN)
    energies = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        k = load_keys(K, keys, columns, strides[2], keys < m, HEAD_DIM)
        centred = tl.where(seen[:, None], k.to(tl.float32) - mean[None, :], 0.0)
        energy = tl.sum(centred * centred, 1)
        energies += energy
        tl.store(SCALE + keys, energy, mask=keys < m)
        if HAS_KL:
            hidden = tl.dot(k, tl.trans(w1.to(k.dtype)), input_precision=PRECISION) + b1[None, :]
            logits = tl.sum(tl.maximum(hidden, 0.0) * w2[None, :], 1) + b2
            tl.store(LOGITS + keys, logits, mask=keys < m)
    if IS_CENTRED:
        average = tl.sum(energies, 0) / tl.maximum(tl.sum(count, 0), 1.0)
    else:
        average = tl.load(TYPICAL + head * groups).to(tl.float32)
    equal = average <= SMALLEST_ENERGY
    tl.store(STATS + BLOCK_D, tl.where(equal, float("inf"), average))
    factor = rho * tl.exp(tl.load(LOG_SHAPE).to(tl.float32))
    tl.debug_barrier()
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < m
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        energy = tl.load(SCALE + keys, mask=inside, other=1.0)
        k = tl.where(equal, 1.0, energy / average) * factor
        scale = 1.0 / tl.minimum(tl.maximum(k, SMALLEST_K), LARGEST_K)
        tl.store(SCALE + keys, scale, mask=inside)
        if HAS_KL:
            tl.store(LOC + keys, -log_moment(scale, HAS_OWN_MOMENT) * LN2, mask=inside)
        loc = -log_moment(level * scale, HAS_OWN_MOMENT)
        for group in range(groups):
            place = (plane * groups + group) * m + keys
            u = tl.load(U + place, mask=inside, other=0.5)
            log_e = loc + level * scale * log_exponential(u, IS_TRUNCATED)
            tl.store(BIAS + place, tl.where(seen, log_e, float("-inf")), mask=inside)


@triton.jit
def draw_backward(
    K, U, SEEN, LOG_SHAPE, NET, SCALE, STATS, DBIAS, DSCALE, DLOC, DLOGITS, DK, SLOPE, PARTS,
    sizes, strides, numbers,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, HAS_MASK: tl.constexpr, IS_CENTRED: tl.constexpr, HAS_KL: tl.constexpr,
    IS_TRUNCATED: tl.constexpr, HAS_OWN_MOMENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient of keys; parts of the gradients of the MLP and of the log shape."""
    key_heads, groups, m = sizes
    k_strides, dk_strides = strides
    rho, level = numbers
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K += batch * k_strides[0] + head * k_strides[1]
    DK += batch * dk_strides[0] + head * dk_strides[1]
    SEEN += batch * m
    SCALE, SLOPE, STATS = SCALE + plane * m, SLOPE + plane * m, STATS + plane * (BLOCK_D + 1)
    DSCALE, DLOC, DLOGITS = DSCALE + plane * m, DLOC + plane * m, DLOGITS + plane * m
    columns, units = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    total = tl.zeros([BLOCK_N], tl.float32)
    count = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < m
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        scale = tl.load(SCALE + keys, mask=inside, other=1.0)
        dscale = tl.zeros([BLOCK_N], tl.float32)
        if HAS_KL:
            dscale = tl.load(DSCALE + keys, mask=inside, other=0.0)
            dloc = tl.load(DLOC + keys, mask=inside, other=0.0)
            dscale -= dloc * log_moment_slope(scale, HAS_OWN_MOMENT)
        loc_slope = log_moment_slope(level * scale, HAS_OWN_MOMENT)
        for group in range(groups):
            place = (plane * groups + group) * m + keys
            g = log_exponential(tl.load(U + place, mask=inside, other=0.5), IS_TRUNCATED) * LN2
            dbias = tl.load(DBIAS + place, mask=seen, other=0.0)
            dscale += dbias * level * (g - loc_slope)
        free = (scale > 1.0 / LARGEST_K) & (scale < 1.0 / SMALLEST_K) & seen
        slope = tl.where(free, dscale * scale, 0.0)
        tl.store(SLOPE + keys, slope, mask=inside)
        total += slope
        count += seen.to(tl.float32)
    slopes, seen_keys = tl.sum(total, 0), tl.maximum(tl.sum(count, 0), 1.0)
    mean = tl.load(STATS + columns)
    to_energy = -2.0 / tl.load(STATS + BLOCK_D)
    factor = rho * tl.exp(tl.load(LOG_SHAPE).to(tl.float32))
    common = slopes / seen_keys if IS_CENTRED else slopes * 0.0
    tl.debug_barrier()
    drift = tl.zeros([BLOCK_D], tl.float32)
    if IS_CENTRED:
        for start in range(0, m, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            seen = load_seen(SEEN, keys, m, HAS_MASK)
            k = load_keys(K, keys, columns, k_strides[2], seen, HEAD_DIM).to(tl.float32)
            slope = tl.load(SLOPE + keys, mask=seen, other=0.0)
            scale = tl.load(SCALE + keys, mask=seen, other=0.0)
            each = tl.where(seen, (slope * scale * factor - common) * to_energy, 0.0)
            drift += tl.sum((k - mean[None, :]) * each[:, None], 0)
        drift /= seen_keys
    if HAS_KL:
        w1, b1, w2, _ = load_network(NET, columns, units, HEAD_DIM, HIDDEN)
        dw1 = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        db1 = tl.zeros([BLOCK_H], tl.float32)
        dw2 = tl.zeros([BLOCK_H], tl.float32)
        db2 = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, m, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = load_seen(SEEN, keys, m, HAS_MASK)
        k = load_keys(K, keys, columns, k_strides[2], seen, HEAD_DIM)
        slope = tl.load(SLOPE + keys, mask=seen, other=0.0)
        scale = tl.load(SCALE + keys, mask=seen, other=0.0)
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
    PARTS += plane * (HIDDEN * HEAD_DIM + 2 * HIDDEN + 2)
    tl.store(PARTS, -slopes)
    if HAS_KL:
        tl.store(PARTS + 1, tl.sum(db2, 0))
        real = units < HIDDEN
        tl.store(PARTS + 2 + units, db1, mask=real)
        tl.store(PARTS + 2 + HIDDEN + units, dw2, mask=real)
        inside = real[:, None] & (columns < HEAD_DIM)[None, :]
        place = PARTS + 2 + 2 * HIDDEN + units[:, None] * HEAD_DIM + columns[None, :]
        tl.store(place, dw1, mask=inside)


launch_forward = Launcher(draw_forward)
launch_backward = Launcher(draw_backward)


class Noise(NamedTuple):
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


def options_of(key: Tensor, network: Network, masked: bool, noise: Noise) -> dict[str, Any]:
    """Constants and compile options."""
    highest = torch.get_float32_matmul_precision() == "highest"
    hidden, size = network.w1.shape
    return _options(key.shape[2], size, key.element_size(), hidden, masked, noise, highest)


@lru_cache(CACHED_LAUNCHES)
def _options(
    m: int, size: int, width: int, hidden: int, masked: bool, noise: Noise, highest: bool
) -> dict[str, Any]:
    keys = max(16, KEYS * 128 // max(block(size) * width, 128))
    return {
        "HEAD_DIM": size,
        "BLOCK_D": block(size),
        "HIDDEN": hidden,
        "BLOCK_H": block(hidden),
        "BLOCK_N": min(keys, block(m)),
        "HAS_MASK": masked,
        "IS_CENTRED": noise.centred,
        "HAS_KL": noise.with_kl,
        "IS_TRUNCATED": noise.truncated,
        "HAS_OWN_MOMENT": noise.own_moment,
        "PRECISION": "ieee" if highest else "tf32",
        "num_warps": WARPS,
    }


def draw(
    key: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor, typical: Tensor,
    network: Network, noise: Noise,
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
    stats = u.new_empty(batch, key_heads, options["BLOCK_D"] + 1)
    launch_forward(
        (batch * key_heads, 1),
        (key, u, key if seen is None else seen, log_shape, typical, tuple(network), bias, scale,
         loc, logits, stats),
        ((key_heads, u.shape[1] // key_heads, m), key.stride()[:3], (noise.rho, noise.level)),
        **options,
    )  # fmt: skip
    return bias, scale, loc, logits, stats


def draw_backward_into(
    dk: Tensor, key: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor, network: Network,
    scale: Tensor, stats: Tensor, dbias: Tensor, others: tuple[Tensor, Tensor, Tensor],
    noise: Noise,
) -> Tensor:  # fmt: skip
    """Adds to the gradient of keys; returns the gradients of log shape and network in one vector.

    The vector has those of the log shape, `b2`, `b1`, `w2` and `w1`. `others` are the gradients of
    scales, locations and logits.
    """
    batch, key_heads, m, _ = key.shape
    parts = scale.new_empty(batch * key_heads, network.size + 1)
    launch_backward(
        (batch * key_heads, 1),
        (key, u, key if seen is None else seen, log_shape, tuple(network), scale, stats, dbias,
         *others, dk, torch.empty_like(scale), parts),
        ((key_heads, u.shape[1] // key_heads, m), (key.stride()[:3], dk.stride()[:3]),
         (noise.rho, noise.level)),
        **options_of(key, network, seen is not None, noise),
    )  # fmt: skip
    return parts if noise.with_kl else parts[:, :1]
