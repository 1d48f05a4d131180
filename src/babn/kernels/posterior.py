"""The Weibull posterior of one tile of query-key pairs, inside kernels; logarithms to base 2."""

import triton
import triton.language as tl

from babn.kernels.special import (
    EULER,
    LARGEST_NOISE,
    LN2,
    LOG2_E,
    digamma_1p,
    exp2,
    gamma_1p,
    inverse_moment,
    log2,
    log_gamma_1p,
    moment_rest,
    moment_rest_slope,
    moment_slope,
    reciprocal,
    softplus,
    softplus_and_slope,
    stirling_rest,
    stirling_rest_slope,
)

FIXED = tl.constexpr(0)
BARE = tl.constexpr(1)
LIFTED = tl.constexpr(2)
"""Where the shape k comes from: a number, the scores alone, or scores and upward path."""

SMALLEST_K = tl.constexpr(0.1)
LARGEST_PHI = tl.constexpr(43.28)
"""The largest score that adds to k, 30 to base e."""

LARGEST_LOG = tl.constexpr(85.3333)
"""Divergences stop growing at 2 to this power, two thirds of what float32 can hold."""

LARGEST_EXPECTED = tl.constexpr(2.0**85.3333)

SMALLEST = tl.constexpr(1e-37)


@triton.jit
def raise_of(u, POSITIVE: tl.constexpr, PRECISE: tl.constexpr):
    """What the upward path adds."""
    if POSITIVE:
        return u
    else:
        return softplus(u, PRECISE)


@triton.jit
def raised(u, POSITIVE: tl.constexpr, PRECISE: tl.constexpr):
    """The same divided by log 2, and its slope before softplus."""
    if POSITIVE:
        slope = tl.where(u < 1e-3, u - 0.5 * u * u, 1.0 - exp2(-u * LOG2_E))
        return u * LOG2_E, slope
    else:
        return softplus_and_slope(u, PRECISE)


@triton.jit
def shape(
    phi, raise1, rho_ln2, fixed_k,
    SHAPE: tl.constexpr, NORMALIZED: tl.constexpr, LARGE_K: tl.constexpr,
):  # fmt: skip
    """The shape k, and the part of it that comes from the scores.

    With LARGE_K it is only looked at where it is at least 1. Forward gives rho and sigma themselves
    with what the upward path adds, backward both times log 2 with that over log 2.
    """
    if SHAPE == FIXED:
        return fixed_k, 0.0
    else:
        bare = exp2(phi if NORMALIZED else tl.minimum(phi, LARGEST_PHI))
        k = bare
        if SHAPE == LIFTED:
            k = raise1 * rho_ln2 + bare
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
def log_gamma(t, y, log_y):
    """Log-gamma of 1 + t."""
    return stirling_rest(y) - (t + 0.5) * log_y - t * LOG2_E


@triton.jit
def digamma(t, y, log_y):
    """Digamma of 1 + t."""
    return (t + 0.5) * y - 1.0 - log_y * LN2 - y * y * stirling_rest_slope(y)


@triton.jit
def log_moment(t, y, log_y, TRUNCATED: tl.constexpr):
    """Log of the noise's mean factor."""
    if TRUNCATED:
        return t * LARGEST_NOISE + log_y + moment_rest(y)
    else:
        return log_gamma(t, y, log_y)


@triton.jit
def log_moment_slope(t, y, log_y, TRUNCATED: tl.constexpr):
    """The derivative in t of its natural logarithm."""
    if TRUNCATED:
        return LARGEST_NOISE * LN2 - y - y * y * moment_rest_slope(y)
    else:
        return digamma(t, y, log_y)


@triton.jit
def scale(log_bare, raise2, sigma_ln2, LIFT: tl.constexpr, NORMALIZED: tl.constexpr):
    """The scale's log; the scale, the scores' part and sigma, over a common factor.

    Raw scores may be large, so that the common factor keeps them finite.
    """
    if LIFT:
        top = 0.0
        if not NORMALIZED:
            top = tl.maximum(log_bare, 0.0)
            log_bare -= top
            sigma_ln2 = exp2(-top) * sigma_ln2
        bare = exp2(log_bare)
        lam = tl.maximum(raise2 * sigma_ln2 + bare, SMALLEST)
        return log2(lam) + top, lam, bare, sigma_ln2
    else:
        return log_bare, 1.0, 1.0, 0.0


@triton.jit
def moments(
    phi, k, raise2, sigma_ln2, log_beta,
    LIFT: tl.constexpr, NORMALIZED: tl.constexpr, OWN_MOMENT: tl.constexpr,
):  # fmt: skip
    """What follows from the shape: 1/k; the mean factor's log and its slope; the scale; the rest.

    The scale comes as in `scale`, the rest is the prior's rate times the mean of an untruncated
    Weibull variable, and digamma of 1 + 1/k.
    """
    t, y = inverse(k)
    log_y = log2(y)
    log_m = log_moment(t, y, log_y, OWN_MOMENT)
    slope = log_moment_slope(t, y, log_y, OWN_MOMENT)
    log_lam, lam, bare, sigma = scale(phi - log_m, raise2, sigma_ln2, LIFT, NORMALIZED)
    log_gam = log_m
    psi = slope
    if OWN_MOMENT:
        log_gam = log_gamma(t, y, log_y)
        psi = digamma(t, y, log_y)
    expected = exp2(tl.minimum(log_lam + log_beta + log_gam, LARGEST_LOG))
    return t, log_m, slope, log_lam, lam, bare, sigma, expected, psi


@triton.jit
def moments_of_large_k(score, k, raise2, sigma_ln2, log_beta):
    """The same where k is at least 1, with `score` for e^phi; without the mean factor's log."""
    t = reciprocal(k)
    bare = score * inverse_moment(t)
    lam = tl.maximum(raise2 * sigma_ln2 + bare, SMALLEST)
    expected = tl.minimum(lam * exp2(log_beta) * gamma_1p(t), LARGEST_EXPECTED)
    return t, t, moment_slope(t), log2(lam), lam, bare, sigma_ln2, expected, digamma_1p(t)


@triton.jit
def divergence(t, log_lam, expected, alpha, rest, log_beta):
    """Kullback-Leibler divergence of the Weibull posterior from the gamma prior, to base e.

    Without the log of k. `rest` is log-gamma of alpha minus Euler's constant minus one.
    """
    return alpha * (EULER * t - LN2 * (log_lam + log_beta)) + expected + rest


@triton.jit
def multiply(a, b):
    """For reductions."""
    return a * b


@triton.jit
def row_sums_of_logs(k, NORMALIZED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of the logs of shapes, to base e.

    Those of normalised scores are multiplied first, four that a thread has at a time, which float32
    can hold up to shapes of four billion.
    """
    if NORMALIZED:
        k = tl.reduce(tl.reshape(k, [BM, BN // 8, 8]), 1, multiply)
    return LN2 * tl.sum(log2(k), 1)


@triton.jit
def prior_rest(alpha, log_alpha):
    """Log-gamma of a prior shape in (0, 1], minus Euler's constant minus one."""
    return log_gamma_1p(alpha) - LN2 * log_alpha - (EULER + 1.0)


@triton.jit
def alpha_digamma_of(alpha):
    """Alpha times digamma of alpha, for a shape in (0, 1]."""
    return alpha * digamma_1p(alpha) - 1.0
