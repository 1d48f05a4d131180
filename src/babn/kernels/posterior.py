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
    log2,
    log_gamma_1p,
    moment_rest,
    moment_rest_slope,
    reciprocal,
    softplus_and_slope,
    stirling_rest,
    stirling_rest_slope,
)

FIXED = tl.constexpr(0)
BARE = tl.constexpr(1)
LIFTED = tl.constexpr(2)
"""Where the shape k comes from: a number, the scores alone, or scores and upward path."""

SMALLEST_K = tl.constexpr(1e-4)
LARGEST_PHI = tl.constexpr(43.28)
"""The largest score that adds to k, 30 to base e."""

LARGEST_LOG = tl.constexpr(85.3333)
"""Divergences stop growing at 2 to this power, two thirds of what float32 can hold."""

SMALLEST = tl.constexpr(1e-37)


@triton.jit
def shape(phi, u1, rho_ln2, fixed_k, SHAPE: tl.constexpr, PRECISE: tl.constexpr):
    """The shape k, the part of it that comes from the scores, and the slope of softplus."""
    if SHAPE == FIXED:
        return fixed_k, 0.0, 0.0
    else:
        bare = exp2(tl.minimum(phi, LARGEST_PHI))
        k, slope = bare, 0.0
        if SHAPE == LIFTED:
            lift, slope = softplus_and_slope(u1, PRECISE)
            k = rho_ln2 * lift + bare
        return tl.maximum(k, SMALLEST_K), bare, slope


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
def scale(
    log_bare, u2, sigma_ln2, LIFT: tl.constexpr, NORMALIZED: tl.constexpr, PRECISE: tl.constexpr
):
    """The scale's log; the scale, the scores' part and sigma, over a common factor; the slope.

    Raw scores may be large, so that the common factor keeps them finite.
    """
    if LIFT:
        lift, slope = softplus_and_slope(u2, PRECISE)
        top = 0.0
        if not NORMALIZED:
            top = tl.maximum(log_bare, 0.0)
            log_bare -= top
            sigma_ln2 = sigma_ln2 * exp2(-top)
        bare = exp2(log_bare)
        lam = tl.maximum(sigma_ln2 * lift + bare, SMALLEST)
        return log2(lam) + top, lam, bare, sigma_ln2, slope
    else:
        return log_bare, 1.0, 1.0, 0.0, 0.0


@triton.jit
def divergence(k, t, log_lam, log_gam, alpha, rest, log_beta):
    """Kullback-Leibler divergence of the Weibull posterior from the gamma prior, to base e.

    `rest` is log-gamma of alpha minus Euler's constant minus one.
    """
    scaled = log_lam + log_beta
    expected = exp2(tl.minimum(scaled + log_gam, LARGEST_LOG))
    return alpha * (EULER * t - LN2 * scaled) + expected + LN2 * log2(k) + rest


@triton.jit
def prior_rest(alpha, log_alpha):
    """Log-gamma of a prior shape in (0, 1], minus Euler's constant minus one."""
    return log_gamma_1p(alpha) - LN2 * log_alpha - (EULER + 1.0)


@triton.jit
def alpha_digamma_of(alpha):
    """Alpha times digamma of alpha, for a shape in (0, 1]."""
    return alpha * digamma_1p(alpha) - 1.0
