"""The Weibull posterior of one tile of query-key pairs, inside kernels; logarithms to base 2.

The noise is a function of seed, row and key alone, so that backward can regenerate it. Each row of
attention gets two 32-bit keys from Philox
([Salmon et al. 2011](https://doi.org/10.1145/2063384.2063405)). The number of a pair is a bijective
mix of its key index with the two keys of its row by two multiplications, a fraction of the work of
Philox for every pair. Only the upper 23 bits are used, which the last multiplication mixes best.
"""

import math

import triton
import triton.language as tl

from babn.attention import belief
from babn.kernels.special import (
    EULER,
    HIGH,
    LN2,
    LOG2_E,
    SMALLEST_K,
    WIDTH,
    digamma,
    digamma_1p,
    gamma_1p,
    inverse_moment,
    log2,
    log_gamma,
    log_gamma_1p,
    log_moment,
    log_moment_slope,
    log_series,
    moment_slope,
    reciprocal,
    softplus,
    softplus_and_slope,
)

LARGEST_PHI = tl.constexpr(belief.LARGEST_PHI / math.log(2))
"""Ceiling of raw scores in the shape, to base 2."""

LARGEST_LOG = tl.constexpr(85.3333)
"""The mean in the KL saturates at 2 to this power, two thirds of the exponent range of float32."""

LARGEST_EXPECTED = tl.constexpr(2.0**LARGEST_LOG.value)

SMALLEST = tl.constexpr(1e-37)
"""Floor of the scale, a normal float32."""


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
        return log2(-log2(one_to_two * -WIDTH + (HIGH + WIDTH))) + LOG2_LN2
    else:
        # Midpoints of 2^23 equal intervals, all below one in float32.
        u = (one_to_two - 1.0) + 5.9604644775390625e-08
        return log2(tl.where(u < 0.01, log_series(u), -log2(1.0 - u))) + LOG2_LN2


@triton.jit
def softplus_term(u, IS_POSITIVE: tl.constexpr, PRECISE: tl.constexpr):
    """What the upward path adds: softplus of the logits, unless IS_POSITIVE already."""
    if IS_POSITIVE:
        return u
    else:
        return softplus(u, PRECISE)


@triton.jit
def softplus_term_and_slope(u, IS_POSITIVE: tl.constexpr, PRECISE: tl.constexpr):
    """The same divided by log 2, and the slope of softplus."""
    if IS_POSITIVE:
        slope = tl.where(u < 1e-3, u - 0.5 * u * u, 1.0 - tl.exp2(-u * LOG2_E))
        return u * LOG2_E, slope
    else:
        return softplus_and_slope(u, PRECISE)


@triton.jit
def shape(phi, shape_term, rho_ln2, fixed_k, C: tl.constexpr, LARGE_K: tl.constexpr):
    """The shape k, and the part of it that comes from the scores.

    With LARGE_K the caller uses it only if it is at least 1. Forward passes rho, backward rho times
    log 2 with the term of the upward path divided by log 2; the same holds for sigma.
    """
    if C.SHAPE_TYPE == "fixed":
        return fixed_k, 0.0
    else:
        bare = tl.exp2(phi if C.IS_NORMALIZED else tl.minimum(phi, LARGEST_PHI))
        k = bare
        if C.SHAPE_TYPE == "upward":
            k = shape_term * rho_ln2 + bare
        if not LARGE_K:
            k = tl.maximum(k, SMALLEST_K)
        return k, bare


@triton.jit
def inverse(k):
    """1/k and k/(1+k) by one division."""
    more = 1.0 + k
    r = reciprocal(k * more)
    return r * more, r * k * k


@triton.jit
def scale(log_bare, scale_term, sigma_ln2, C: tl.constexpr):
    """The log of the scale; the scale, the scores' part and sigma, divided by a common factor.

    The common factor keeps large raw scores finite.
    """
    if C.HAS_SCALE:
        top = 0.0
        if not C.IS_NORMALIZED:
            top = tl.maximum(log_bare, 0.0)
            log_bare -= top
            sigma_ln2 = tl.exp2(-top) * sigma_ln2
        bare = tl.exp2(log_bare)
        lam = tl.maximum(scale_term * sigma_ln2 + bare, SMALLEST)
        return log2(lam) + top, lam, bare, sigma_ln2
    else:
        return log_bare, 1.0, 1.0, 0.0


@triton.jit
def moments(phi, score, k, scale_term, sigma, log_beta, LARGE_K: tl.constexpr, C: tl.constexpr):
    """1/k; the log of the mean factor and its slope; the scale; expected value and digamma.

    The scale is as `scale` returns it. The expected value is the prior's rate times the mean of an
    untruncated Weibull variable; digamma is that of 1 + 1/k. LARGE_K is for k of at least 1, with
    `score` for e^phi; the log of the mean factor is then missing.
    """
    if LARGE_K:
        return moments_of_large_k(score, k, scale_term, sigma, log_beta)
    else:
        return moments_of_any_k(phi, k, scale_term, sigma, log_beta, C)


@triton.jit
def moments_of_any_k(phi, k, scale_term, sigma_ln2, log_beta, C: tl.constexpr):
    """The same for every k."""
    t, y = inverse(k)
    log_y = log2(y)
    log_m = log_moment(t, y, log_y, C.HAS_OWN_MOMENT)
    slope = log_moment_slope(t, y, log_y, C.HAS_OWN_MOMENT)
    log_lam, lam, bare, sigma = scale(phi - log_m, scale_term, sigma_ln2, C)
    log_gam = log_m
    psi = slope
    if C.HAS_OWN_MOMENT:
        log_gam = log_gamma(t, y, log_y)
        psi = digamma(t, y, log_y)
    expected = tl.exp2(tl.minimum(log_lam + log_beta + log_gam, LARGEST_LOG))
    return t, log_m, slope, log_lam, lam, bare, sigma, expected, psi


@triton.jit
def moments_of_large_k(score, k, scale_term, sigma_ln2, log_beta):
    """The same for k of at least 1."""
    t = reciprocal(k)
    bare = score * inverse_moment(t)
    lam = tl.maximum(scale_term * sigma_ln2 + bare, SMALLEST)
    expected = tl.minimum(lam * tl.exp2(log_beta) * gamma_1p(t), LARGEST_EXPECTED)
    return t, t, moment_slope(t), log2(lam), lam, bare, sigma_ln2, expected, digamma_1p(t)


@triton.jit
def kl_of_pairs(t, log_lam, expected, alpha, rest, log_beta):
    """KL of the Weibull posterior from the gamma prior without log k, to base e.

    `rest` is log-gamma of alpha minus Euler's constant minus one.
    """
    return alpha * (EULER * t - LN2 * (log_lam + log_beta)) + expected + rest


@triton.jit
def multiply(a, b):
    """For reductions."""
    return a * b


@triton.jit
def row_sums_of_logs(k, IS_NORMALIZED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Sums of the logs of shapes, to base e.

    Those of normalised scores are multiplied first, four of a thread at a time, which does not
    overflow float32 for shapes up to 4e9.
    """
    if IS_NORMALIZED:
        k = tl.reduce(tl.reshape(k, [BLOCK_M, BLOCK_N // 8, 8]), 1, multiply)
    return LN2 * tl.sum(log2(k), 1)


@triton.jit
def prior_rest(alpha, log_alpha):
    """Log-gamma of a prior shape in (0, 1], minus Euler's constant minus one."""
    return log_gamma_1p(alpha) - LN2 * log_alpha - (EULER + 1.0)


@triton.jit
def alpha_digamma_of(alpha):
    """Alpha times digamma of alpha, for a shape in (0, 1]."""
    return alpha * digamma_1p(alpha) - 1.0
