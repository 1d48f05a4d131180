"""Variables of keys: their shapes, a sample, and logits of their prior, in one kernel.

Computes what `babn.attention.keys.KeyBeliefMethod` defines, with the keys read twice and nothing
stored that is as large as they are. A program has a share of the keys of one head of one example;
with several shares, means over all keys take a kernel of their own.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from babn.attention import keys as reference
from babn.kernels.key_inputs import KeyNoise
from babn.kernels.launch import Launcher, Types, block, ceil_div
from babn.kernels.special import HIGH, LN2, SMALLEST_K, WIDTH, log_moment, log_series
from babn.kernels.tiles import keys_seen, load_mlp

LARGEST_K = tl.constexpr(reference.LARGEST_K)
SMALLEST_ENERGY = tl.constexpr(reference.SMALLEST_ENERGY)

SHARE = 256
"""Keys of a program."""

TILES = {"draw": (128, 4), "draw_backward": (64, 2)}
"""Keys of a block and warps of a program with heads of 128 bytes, in each direction."""

SUM_OPTIONS = "HEAD_DIM", "BLOCK_D", "BLOCK_N", "SHARE", "HAS_MASK", "num_warps"


@triton.jit
def log_mean_factor(t, HAS_OWN_MOMENT: tl.constexpr):
    """Logarithm to base 2 of the mean factor at t: that of the truncated noise, or Gamma(1 + t)."""
    y = 1.0 / (1.0 + t)
    return log_moment(t, y, tl.log2(y), HAS_OWN_MOMENT)


@triton.jit
def log_exponential(u, IS_TRUNCATED: tl.constexpr):
    """Logarithm to base 2 of a standard exponential, by its quantile at u."""
    if IS_TRUNCATED:
        value = -tl.log2(u * -WIDTH + HIGH)
    else:
        u = tl.maximum(u, 1.1754944e-38)
        value = tl.where(u < 0.01, log_series(u), -tl.log2(tl.maximum(1.0 - u, 5.9604645e-08)))
    return tl.log2(value * LN2)


@triton.jit
def load_keys(K, keys, columns, stride, seen, HEAD_DIM: tl.constexpr):
    """Keys as a block, with zeros at those that no query sees."""
    inside = seen[:, None] & (columns < HEAD_DIM)[None, :]
    return tl.load(K + keys[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def load_network(PARAMETERS, columns, units, HEAD_DIM: tl.constexpr, HIDDEN: tl.constexpr):
    """Weights and biases of the MLP, zero beyond its sizes."""
    B1 = PARAMETERS + 2
    W2 = B1 + HIDDEN
    w1, b1, w2 = load_mlp(W2 + HIDDEN, B1, W2, columns, units, HEAD_DIM, HIDDEN)
    return w1, b1, w2, tl.load(PARAMETERS + 1).to(tl.float32)


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
        seen = keys_seen(SEEN, keys, m, 1, HAS_MASK)
        k = load_keys(K, keys, columns, stride, seen, HEAD_DIM).to(tl.float32)
        k = tl.where(seen[:, None], k - origin[None, :], 0.0)
        total += tl.sum(k, 0)
        squares += tl.sum(k * k, 1)
        count += seen.to(tl.float32)
    return total, tl.sum(squares, 0), tl.sum(count, 0)


@triton.jit
def sum_keys(
    K, SEEN, SUMS, k_batch, k_head, k_row, key_heads, m,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, SHARE: tl.constexpr,
    HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Stores the sums of a share of the keys."""
    plane = tl.program_id(0).to(tl.int64)
    K += plane // key_heads * k_batch + plane % key_heads * k_head
    SEEN += plane // key_heads * m
    columns, first = tl.arange(0, BLOCK_D), tl.program_id(1) * SHARE
    origin = tl.load(K + columns, mask=columns < HEAD_DIM, other=0.0).to(tl.float32)
    total, squares, count = sums_of_range(
        K, SEEN, origin, columns, first, tl.minimum(first + SHARE, m), k_row, m,
        HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK,
    )  # fmt: skip
    SUMS += (plane * tl.num_programs(1) + tl.program_id(1)) * (BLOCK_D + 2)
    tl.store(SUMS + columns, total)
    tl.store(SUMS + BLOCK_D, squares)
    tl.store(SUMS + BLOCK_D + 1, count)


@triton.jit
def draw_forward(
    K, U, SEEN, PARAMETERS, TYPICAL, SUMS, BIAS, NUMBERS, STATS,
    k_batch, k_head, k_row, key_heads, groups, m, rho, level,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr, SHARE: tl.constexpr, IS_WHOLE: tl.constexpr, HAS_MASK: tl.constexpr,
    IS_CENTRED: tl.constexpr, HAS_KL: tl.constexpr, IS_TRUNCATED: tl.constexpr,
    HAS_OWN_MOMENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Log factors to base 2 of a share of the keys.

    NUMBERS gets their scales, and for the KL the logits of the prior; STATS the mean key, the mean
    energy and the number of keys.
    """
    rho, level = tl.cast(rho, tl.float32), tl.cast(level, tl.float32)
    plane = tl.program_id(0).to(tl.int64)
    batch, head = plane // key_heads, plane % key_heads
    K += batch * k_batch + head * k_head
    SEEN += batch * m
    NUMBERS += plane * m
    size = tl.num_programs(0).to(tl.int64) * m
    columns, units = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_H)
    mean = tl.zeros([BLOCK_D], tl.float32)
    count = 1.0
    if IS_CENTRED:
        origin = tl.load(K + columns, mask=columns < HEAD_DIM, other=0.0).to(tl.float32)
        if IS_WHOLE:
            total, squares, count = sums_of_range(
                K, SEEN, origin, columns, 0, m, k_row, m, HEAD_DIM, BLOCK_D, BLOCK_N, HAS_MASK
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
    factor = rho * tl.exp(tl.load(PARAMETERS).to(tl.float32))
    if HAS_KL:
        w1, b1, w2, b2 = load_network(PARAMETERS, columns, units, HEAD_DIM, HIDDEN)
    first = tl.program_id(1) * SHARE
    for start in range(first, tl.minimum(first + SHARE, m), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < m
        seen = keys_seen(SEEN, keys, m, 1, HAS_MASK)
        k = load_keys(K, keys, columns, k_row, inside, HEAD_DIM)
        centred = k.to(tl.float32) - mean[None, :]
        energy = tl.where(seen, tl.sum(centred * centred, 1), 0.0)
        shape = tl.where(equal, 1.0, energy / average) * factor
        scale = 1.0 / tl.minimum(tl.maximum(shape, SMALLEST_K), LARGEST_K)
        tl.store(NUMBERS + keys, scale, mask=inside)
        if HAS_KL:
            hidden = tl.dot(k, tl.trans(w1.to(k.dtype)), input_precision=PRECISION) + b1[None, :]
            logits = tl.sum(tl.maximum(hidden, 0.0) * w2[None, :], 1) + b2
            tl.store(NUMBERS + size + keys, logits, mask=inside)
        loc = -log_mean_factor(level * scale, HAS_OWN_MOMENT)
        for group in range(groups):
            place = (plane * groups + group) * m + keys
            u = tl.load(U + place, mask=inside, other=0.5)
            log_e = loc + level * scale * log_exponential(u, IS_TRUNCATED)
            tl.store(BIAS + place, tl.where(seen, log_e, float("-inf")), mask=inside)


launch_sums, launch_forward = Launcher(sum_keys), Launcher(draw_forward)


def options_of(
    name: str, m: int, size: int, width: int, parameters: int, masked: bool, noise: KeyNoise,
    products: str,
) -> dict[str, Any]:  # fmt: skip
    """Constants and compile options of the kernels.

    Args:
        name: The direction, as in `TILES`.
        m: Number of keys.
        size: Size of a head.
        width: Bytes of each number of the keys.
        parameters: Number of parameters.
        masked: Whether there is a mask.
        noise: Settings.
        products: How products of float32 matrices are computed.
    """
    hidden = (parameters - 2) // (size + 2) if noise.with_kl else 0
    keys, warps = TILES[name]
    parts = max(1, block(size) * width // 128)
    keys = max(16, keys // parts)
    return {
        "HEAD_DIM": size,
        "BLOCK_D": block(size),
        "HIDDEN": hidden,
        "BLOCK_H": block(hidden),
        "BLOCK_N": keys if m >= keys else block(m),
        "SHARE": SHARE,
        "IS_WHOLE": m <= SHARE,
        "HAS_MASK": masked,
        "IS_CENTRED": noise.centred,
        "HAS_KL": noise.with_kl,
        "IS_TRUNCATED": noise.truncated,
        "HAS_OWN_MOMENT": noise.own_moment,
        "PRECISION": products,
        "num_warps": warps if parts == 1 else 4,
    }


def launch_over_shares(
    launch: Launcher, names: tuple[str, ...], grid: tuple[int, int], tensors: tuple[Tensor, ...],
    numbers: tuple[Any, ...], options: dict[str, Any], types: Types, like: Tensor,
) -> Tensor:  # fmt: skip
    """Sums over shares of the keys; any tensor where one program has all keys, or none are needed.

    `names` are the options that the kernel takes.
    """
    if options["IS_WHOLE"] or not options["IS_CENTRED"]:
        return like
    sums = like.new_empty(*grid, options["BLOCK_D"] + 2)
    launch(grid, (*tensors, sums), numbers, {name: options[name] for name in names}, types)
    return sums


def draw(
    key: Tensor, heads: int, u: Tensor, seen: Tensor | None, parameters: Tensor,
    typical: Tensor | None, noise: KeyNoise, options: dict[str, Any],
    types: Types,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Log factors to base 2, the numbers of `KernelKeyKL`, and what backward needs of the keys.

    The numbers have one row for each head of keys; without the KL they are the scales alone.

    Args:
        key: Keys of shape (batch, key head, key, size).
        heads: Number of heads of queries.
        u: Uniform numbers, one for each example, head and key in this order.
        seen: The keys that any query sees, of shape (batch, key), contiguous; all by default.
        parameters: Those of the layer, as `KeyInputs` has them.
        typical: Typical energy of each head, for shapes not relative to the call.
        noise: Settings.
        options: What `options_of` returns for them.
        types: Types of the tensors, as launches take them.
    """
    batch, key_heads, m, _ = key.shape
    bias = u.new_empty(batch, heads, 1, m)
    numbers = u.new_empty(2 if noise.with_kl else 1, batch, key_heads, 1, m)
    stats = u.new_empty(batch, key_heads, options["BLOCK_D"] + 2)
    grid, strides = (batch * key_heads, ceil_div(m, SHARE)), key.stride()[:3]
    shown = key if seen is None else seen
    sums = launch_over_shares(
        launch_sums, SUM_OPTIONS, grid, (key, shown), (*strides, key_heads, m), options, types, u
    )
    launch_forward(
        grid,
        (key, u, shown, parameters, u if typical is None else typical, sums, bias, numbers, stats),
        (*strides, key_heads, heads // key_heads, m, noise.rho, noise.level),
        options,
        types,
    )
    return bias, numbers, stats
