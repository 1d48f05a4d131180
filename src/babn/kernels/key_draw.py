"""Variables of keys: their shapes, a sample, and logits of their prior, in one kernel.

Computes what `babn.attention.keys.KeyBeliefMethod` defines, with the keys read twice and nothing
stored that is as large as they are. A program has a share of the keys of one head of one example;
with several shares, means over all keys take a kernel of their own.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from babn.attention import keys as reference
from babn.kernels import posterior
from babn.kernels.launch import CACHED_LAUNCHES, Launcher, block, precision
from babn.kernels.posterior import SMALLEST_K
from babn.kernels.prior import load_network
from babn.kernels.settings import KeySettings
from babn.kernels.special import HIGHEST_REST, LN2, REST_RANGE, small_log2
from babn.kernels.tiles import at_head, dot, keys_seen

LARGEST_K = tl.constexpr(reference.LARGEST_K)
SMALLEST_ENERGY = tl.constexpr(reference.SMALLEST_ENERGY)

SHARE, KEYS, WARPS = 256, 64, 4
"""Keys of a program, keys in a block with heads of 128 bytes, and warps of a program."""

Network = tuple[Tensor, Tensor, Tensor, Tensor]
"""Weight and bias of the first layer of the prior's MLP, and those of the second."""


@dataclass(frozen=True)
class DrawFlags:
    """What the kernels are compiled for.

    `IS_WHOLE` is whether one program has all keys of a head, `IS_CENTRED` whether shapes are
    relative to the keys of the call. Other names are those of `Flags` and `MlpFlags`.
    """

    HEAD_DIM: int
    BLOCK_D: int
    HIDDEN: int
    BLOCK_H: int
    BLOCK_N: int
    SHARE: int
    IS_WHOLE: bool
    HAS_MASK: bool
    IS_TRUNCATED: bool
    HAS_OWN_MOMENT: bool
    IS_CENTRED: bool
    HAS_KL: bool
    PRECISION: int


@triton.jit
def log_moment(t, OWN: tl.constexpr):
    """Logarithm to base 2 of the mean factor at t: that of the truncated noise, or Gamma(1 + t)."""
    y = 1.0 / (1.0 + t)
    return posterior.log_moment(t, y, tl.log2(y), OWN)


@triton.jit
def log_exponential(u, IS_TRUNCATED: tl.constexpr):
    """Logarithm to base 2 of a standard exponential, by its quantile at u."""
    if IS_TRUNCATED:
        value = -tl.log2(u * -REST_RANGE + HIGHEST_REST)
    else:
        u = tl.maximum(u, 1.1754944e-38)
        rest = tl.maximum(1.0 - u, 5.9604645e-08)
        value = tl.where(u < 0.01, small_log2(u), -tl.log2(rest))
    return tl.log2(value * LN2)


@triton.jit
def load_keys(K, keys, columns, stride, seen, C: tl.constexpr):
    """Keys as a block, with zeros at those that no query sees."""
    inside = seen[:, None] & (columns < C.HEAD_DIM)[None, :]
    return tl.load(K + keys[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def sums_of_range(K, SEEN, origin, columns, first, last, stride, m, C: tl.constexpr):
    """Sums of keys and of their squared lengths relative to `origin`, and the number of keys."""
    BLOCK_D: tl.constexpr = C.BLOCK_D
    BLOCK_N: tl.constexpr = C.BLOCK_N
    total = tl.zeros([BLOCK_D], tl.float32)
    squares = tl.zeros([BLOCK_N], tl.float32)
    count = tl.zeros([BLOCK_N], tl.float32)
    for start in range(first, last, C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        seen = keys_seen(SEEN, keys, m, 1, C.HAS_MASK)
        k = load_keys(K, keys, columns, stride, seen, C).to(tl.float32)
        k = tl.where(seen[:, None], k - origin[None, :], 0.0)
        total += tl.sum(k, 0)
        squares += tl.sum(k * k, 1)
        count += seen.to(tl.float32)
    return total, tl.sum(squares, 0), tl.sum(count, 0)


@triton.jit
def sum_keys(inputs, outputs, k_strides, sizes, C: tl.constexpr):
    """Stores the sums of a share of the keys."""
    K, SEEN = inputs
    (SUMS,) = outputs
    key_heads, m = sizes
    plane = tl.program_id(0).to(tl.int64)
    K = at_head(K, k_strides, plane // key_heads, plane % key_heads)
    SEEN += plane // key_heads * m
    columns, first = tl.arange(0, C.BLOCK_D), tl.program_id(1) * C.SHARE
    origin = tl.load(K + columns, mask=columns < C.HEAD_DIM, other=0.0).to(tl.float32)
    last = tl.minimum(first + C.SHARE, m)
    total, squares, count = sums_of_range(K, SEEN, origin, columns, first, last, k_strides[2], m, C)
    SUMS += (plane * tl.num_programs(1) + tl.program_id(1)) * (C.BLOCK_D + 2)
    tl.store(SUMS + columns, total)
    tl.store(SUMS + C.BLOCK_D, squares)
    tl.store(SUMS + C.BLOCK_D + 1, count)


@triton.jit
def draw_forward(inputs, network, outputs, k_strides, sizes, numbers, C: tl.constexpr):
    """Log factors to base 2 of a share of the keys.

    NUMBERS gets their scales, and for the KL also locations and logits; STATS the mean key, the
    mean energy and the number of keys.
    """
    BLOCK_D: tl.constexpr = C.BLOCK_D
    K, U, SEEN, LOG_SHAPE, TYPICAL, SUMS = inputs
    W1, B1, W2, B2 = network
    BIAS, NUMBERS, STATS = outputs
    key_heads, groups, m, own = sizes
    rho, level = numbers
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K = at_head(K, k_strides, batch, head)
    SEEN += batch * m
    NUMBERS += plane * m
    size = tl.num_programs(0).to(tl.int64) * m
    columns, units = tl.arange(0, C.BLOCK_D), tl.arange(0, C.BLOCK_H)
    mean = tl.zeros([BLOCK_D], tl.float32)
    count = 1.0
    if C.IS_CENTRED:
        origin = tl.load(K + columns, mask=columns < C.HEAD_DIM, other=0.0).to(tl.float32)
        if C.IS_WHOLE:
            total, squares, count = sums_of_range(
                K, SEEN, origin, columns, 0, m, k_strides[2], m, C
            )
        else:
            SUMS += plane * tl.num_programs(1) * (C.BLOCK_D + 2)
            total = tl.zeros([BLOCK_D], tl.float32)
            squares = 0.0
            count = 0.0
            for _ in range(tl.num_programs(1)):
                total += tl.load(SUMS + columns)
                squares += tl.load(SUMS + C.BLOCK_D)
                count += tl.load(SUMS + C.BLOCK_D + 1)
                SUMS += C.BLOCK_D + 2
        count = tl.maximum(count, 1.0)
        total /= count
        mean = origin + total
        average = tl.maximum(squares / count - tl.sum(total * total, 0), 0.0)
    else:
        average = tl.load(TYPICAL + (own * key_heads + head) * groups).to(tl.float32)
    equal = average <= SMALLEST_ENERGY
    if tl.program_id(1) == 0:
        STATS += plane * (C.BLOCK_D + 2)
        tl.store(STATS + columns, mean)
        tl.store(STATS + C.BLOCK_D, tl.where(equal, float("inf"), average))
        tl.store(STATS + C.BLOCK_D + 1, count)
    factor = rho * tl.exp(tl.load(LOG_SHAPE + own).to(tl.float32))
    if C.HAS_KL:
        w1, b1, w2 = load_network(W1, B1, W2, columns, units, K.dtype.element_ty, C)
        b2 = tl.load(B2).to(tl.float32)
    first = tl.program_id(1) * C.SHARE
    for start in range(first, tl.minimum(first + C.SHARE, m), C.BLOCK_N):
        keys = start + tl.arange(0, C.BLOCK_N)
        inside = keys < m
        seen = keys_seen(SEEN, keys, m, 1, C.HAS_MASK)
        k = load_keys(K, keys, columns, k_strides[2], inside, C)
        centred = k.to(tl.float32) - mean[None, :]
        energy = tl.where(seen, tl.sum(centred * centred, 1), 0.0)
        shape = tl.where(equal, 1.0, energy / average) * factor
        scale = 1.0 / tl.minimum(tl.maximum(shape, SMALLEST_K), LARGEST_K)
        tl.store(NUMBERS + keys, scale, mask=inside)
        if C.HAS_KL:
            own_loc = -log_moment(scale, C.HAS_OWN_MOMENT) * LN2
            tl.store(NUMBERS + size + keys, own_loc, mask=inside)
            hidden = dot(k, tl.trans(w1), C.PRECISION) + b1[None, :]
            logits = tl.sum(tl.maximum(hidden, 0.0) * w2[None, :], 1) + b2
            tl.store(NUMBERS + 2 * size + keys, logits, mask=inside)
        loc = -log_moment(level * scale, C.HAS_OWN_MOMENT)
        for group in range(groups):
            place = (plane * groups + group) * m + keys
            u = tl.load(U + place, mask=inside, other=0.5)
            log_e = loc + level * scale * log_exponential(u, C.IS_TRUNCATED)
            tl.store(BIAS + place, tl.where(seen, log_e, float("-inf")), mask=inside)


launch_sums, launch_forward = Launcher(sum_keys), Launcher(draw_forward)


def flags_of(key: Tensor, w1: Tensor, masked: bool, settings: KeySettings) -> DrawFlags:
    """What the kernels are compiled for; large heads and short texts get smaller blocks."""
    flags = settings.truncated, settings.own_moment, settings.centred, settings.with_kl
    return _flags(key.shape[2], *w1.shape, key.element_size(), masked, flags, precision(key.dtype))


@lru_cache(CACHED_LAUNCHES)
def _flags(
    m: int,
    hidden: int,
    size: int,
    width: int,
    masked: bool,
    flags: tuple[bool, bool, bool, bool],
    products: int,
) -> DrawFlags:
    keys = max(16, KEYS * 128 // max(block(size) * width, 128))
    return DrawFlags(
        size, block(size), hidden, block(hidden), keys if m >= keys else block(m), SHARE,
        m <= SHARE, masked, *flags, products,
    )  # fmt: skip


def launch_over_shares(
    launch: Launcher, grid: tuple[int, int], tensors: tuple[Tensor, ...], numbers: tuple[Any, ...],
    flags: DrawFlags, like: Tensor,
) -> Tensor:  # fmt: skip
    """Sums over shares of keys; any tensor where one program has all keys, or none are needed."""
    if flags.IS_WHOLE or not flags.IS_CENTRED:
        return like
    sums = like.new_empty(*grid, flags.BLOCK_D + 2)
    launch(grid, (tensors, (sums,)), numbers, C=flags, num_warps=WARPS)
    return sums


def draw(
    key: Tensor, u: Tensor, seen: Tensor | None, log_shape: Tensor, typical: Tensor,
    network: Network, settings: KeySettings,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Log factors to base 2, the numbers of `KeyKL`, and what backward needs of the keys.

    The numbers have one row for each head of keys; without the KL they are the scales alone.

    Args:
        key: Keys of shape (batch, key head, key, size).
        u: Uniform numbers of shape (batch, head, 1, key), contiguous.
        seen: The keys that any query sees, of shape (batch, key), contiguous; all by default.
        log_shape: The logarithms of all layers' shape factors.
        typical: Typical energies of all layers and heads, for shapes not relative to the call.
        network: The MLP of the prior.
        settings: Settings of the call.
    """
    batch, key_heads, m, _ = key.shape
    flags = flags_of(key, network[0], seen is not None, settings)
    bias = torch.empty_like(u)
    numbers = u.new_empty(3 if settings.with_kl else 1, batch, key_heads, 1, m)
    stats = u.new_empty(batch, key_heads, flags.BLOCK_D + 2)
    grid, shown = (batch * key_heads, -(-m // SHARE)), key if seen is None else seen
    sums = launch_over_shares(
        launch_sums, grid, (key, shown), (key.stride(), (key_heads, m)), flags, u
    )
    launch_forward(
        grid,
        ((key, u, shown, log_shape, typical, sums), network, (bias, numbers, stats)),
        (key.stride(), (key_heads, u.shape[1] // key_heads, m, settings.own),
         (settings.rho, settings.level)),
        C=flags, num_warps=WARPS,
    )  # fmt: skip
    return bias, numbers, stats
