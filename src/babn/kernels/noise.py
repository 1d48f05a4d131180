"""Counter-based noise: a function of seed, row and key alone, so that backward can regenerate it.

Each row of attention gets two 32-bit keys from Philox
([Salmon et al. 2011](https://doi.org/10.1145/2063384.2063405)). The number of a pair is a bijective
mix of its key index with the two keys of its row by two multiplications, a fraction of the work of
Philox for every pair. Only the upper 23 bits are used, which the last multiplication mixes best.
"""

import math

import triton
import triton.language as tl

from babn.kernels.special import HIGHEST_REST, REST_RANGE, log2, small_log2

LOG2_LN2 = tl.constexpr(math.log2(math.log(2)))
"""Base-2 logarithm of log 2."""


@triton.jit
def row_keys(SEEDS, batch, head, heads, rows, rows_per_seed):
    """Two keys for each query row; a block of the batch depends on its own seed alone."""
    seed = tl.load(SEEDS + batch // rows_per_seed)
    plane = (batch % rows_per_seed) * heads + head
    zero = rows * 0
    first, second, _, _ = tl.philox(seed, rows, zero + plane, zero, zero)
    return first, second


@triton.jit
def uniform_bits(first, second, keys):
    """32 random bits for each pair of a row and a key."""
    x = (keys.to(tl.uint32) * 0x9E3779B1)[None, :] + first.to(tl.uint32)[:, None]
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= (x >> 15) ^ second.to(tl.uint32)[:, None]
    x *= 0xD35A2D97
    return x


@triton.jit
def log_exponential(bits, IS_TRUNCATED: tl.constexpr):
    """Base-2 log of a standard exponential, from a uniform number in (0.1, 0.9) if IS_TRUNCATED."""
    # A number from 1 to 2 by its bits, since converting an integer is slow.
    one_to_two = ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True)
    if IS_TRUNCATED:
        rest = one_to_two * -REST_RANGE + (HIGHEST_REST + REST_RANGE)
        return log2(-log2(rest)) + LOG2_LN2
    else:
        # Midpoints of 2^23 equal intervals, all below one in float32.
        u = (one_to_two - 1.0) + 5.9604644775390625e-08
        return log2(tl.where(u < 0.01, small_log2(u), -log2(1.0 - u))) + LOG2_LN2
