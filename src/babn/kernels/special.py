r"""Special functions inside kernels: logarithms to base 2, and short polynomials with known errors.

The hardware computes $2^x$ and $\log_2 x$, so all logarithms in the kernels are to base 2. With
$t = 1/k$ and $y = 1/(1+t)$, which runs over (0, 1],

$$\log\Gamma(1+t) = (t + \tfrac12)\log(1+t) - t + R(y), \qquad
\log m(t) = t\,Q(0.9) - \log(1+t) + M(y),$$

with $R$ and $M$ bounded and smooth. As natural logarithms, the polynomials below have errors of at
most 2e-7 for $R$, 6e-6 for $M$ and 4e-7 for $\log\Gamma(1+a)$ on [0, 1]; the derivatives in $t$
have errors of at most 4e-6 (log-gamma) and 2e-3 (the truncated moment, worst at tiny $t$).

Where $k \ge 1$, $t$ is in (0, 1], and polynomials in $t$ approximate moments and the gamma function
themselves, without logarithms, to a relative error of 7e-6.

`tests/kernels/test_kernel_special.py` proves the bounds, and `tools/fit_polynomials.py` fits such
coefficients. The PTX instructions of `log2` and `reciprocal` are approximate and flush subnormal
numbers to zero. On an H200, they reduce the time of the forward kernel from .79 to .45 ms, and of
the backward kernel for rows, with its smaller tile, from 1.68 to 1.58
(`tools/results/kernel-tricks.json`).
"""

import math
import os

import triton
import triton.language as tl

from babn.attention import keys
from babn.distributions import kl, noise

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Whether kernels run through the interpreter, which has no PTX."""

LN2 = tl.constexpr(math.log(2))
LOG2_E = tl.constexpr(1 / math.log(2))
EULER = tl.constexpr(kl.EULER)
SMALLEST_K = tl.constexpr(keys.SMALLEST_K)

HIGH = tl.constexpr(noise.HIGH)
WIDTH = tl.constexpr(noise.HIGH - noise.LOW)
"""Largest uniform number of truncated noise, and the width of their interval."""

LARGEST_NOISE = tl.constexpr(math.log2(-math.log1p(-noise.HIGH)))
"""The largest base-2 log of truncated exponential noise."""


@triton.jit
def log2(x):
    """Logarithm to base 2."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def reciprocal(x):
    """One over x."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log_series(u):
    """The base-2 logarithm of 1 / (1 - u) for small u, by its series."""
    return u * (u * (u * (u * (LOG2_E / 4) + LOG2_E / 3) + LOG2_E / 2) + LOG2_E)


@triton.jit
def softplus_and_slope(x, PRECISE: tl.constexpr):
    """Softplus divided by log 2, and its slope, which is the logistic function.

    For small e^x the sum 1 + e^x loses digits, fewer than half-precision inputs have. If PRECISE,
    the series of the logarithm replaces it there.
    """
    x = x * LOG2_E
    e = tl.exp2(tl.minimum(x, 126.0))
    one = 1.0 + e
    value = log2(one)
    if PRECISE:
        value = tl.where(e < 0.03, -log_series(-e), value)
    return tl.maximum(value, x), e * reciprocal(one)


@triton.jit
def softplus(x, PRECISE: tl.constexpr):
    """Softplus alone, to base e; without PRECISE to a relative error of 6e-5.

    Without PRECISE a polynomial replaces the logarithm, since special functions are the bottleneck
    of kernels that do little else.
    """
    if PRECISE:
        value, _ = softplus_and_slope(x, PRECISE)
        return value * LN2
    else:
        e = tl.exp2(tl.abs(x) * -LOG2_E)
        p = 0.0413473 * e - 0.15742724
        p = p * e + 0.30630097
        p = p * e - 0.49697782
        p = p * e + 0.99994326
        return p * e + tl.maximum(x, 0.0)


@triton.jit
def stirling_rest(y):
    """R(y) to base 2."""
    r = -0.00010486713 * y + 0.0013349206
    r = r * y - 0.0046322966
    r = r * y + 0.00013568922
    r = r * y + 0.12021344
    return r * y - 0.11694682


@triton.jit
def stirling_rest_slope(y):
    """The derivative of R to base e."""
    r = -0.00036344 * y + 0.0037011855
    r = r * y - 0.009632595
    r = r * y + 0.00018810520
    return r * y + 0.083325607


@triton.jit
def moment_rest(y):
    """M(y) to base 2."""
    z = 2.0 * y - 1.0
    m = 0.023569199 * z - 0.018242852
    m = m * z - 0.06464797
    m = m * z + 0.059525915
    m = m * z + 0.048865438
    m = m * z - 0.049632647
    m = m * z - 0.040686174
    m = m * z + 0.058348373
    m = m * z + 0.094434884
    m = m * z - 0.47753782
    m = m * z + 0.83684348
    return m * z - 0.47083411


@triton.jit
def moment_rest_slope(y):
    """The derivative of M to base e."""
    z = 2.0 * y - 1.0
    m = 0.3594123324 * z - 0.252899624
    m = m * z - 0.8065900422
    m = m * z + 0.6601635216
    m = m * z + 0.4741931656
    m = m * z - 0.4128327492
    m = m * z - 0.282015066
    m = m * z + 0.3235520816
    m = m * z + 0.3927436434
    m = m * z - 1.324015988
    return m * z + 1.160111392


@triton.jit
def log_gamma(t, y, log_y):
    """Base-2 logarithm of Gamma(1 + t), from y = 1 / (1 + t) and its base-2 logarithm."""
    return stirling_rest(y) - (t + 0.5) * log_y - t * LOG2_E


@triton.jit
def digamma(t, y, log_y):
    """Digamma of 1 + t."""
    return (t + 0.5) * y - 1.0 - log_y * LN2 - y * y * stirling_rest_slope(y)


@triton.jit
def log_moment(t, y, log_y, IS_TRUNCATED: tl.constexpr):
    """Base-2 log of the noise's mean factor."""
    if IS_TRUNCATED:
        return t * LARGEST_NOISE + log_y + moment_rest(y)
    else:
        return log_gamma(t, y, log_y)


@triton.jit
def log_moment_slope(t, y, log_y, IS_TRUNCATED: tl.constexpr):
    """The derivative in t of its natural logarithm."""
    if IS_TRUNCATED:
        return LARGEST_NOISE * LN2 - y - y * y * moment_rest_slope(y)
    else:
        return digamma(t, y, log_y)


@triton.jit
def log_gamma_1p(a):
    """Log-gamma of 1 + a for a in [0, 1], to base e."""
    g = -0.010286857 * a + 0.054258748
    g = g * a - 0.13745192
    g = g * a + 0.24341902
    g = g * a - 0.39449911
    g = g * a + 0.82174254
    g = g * a - 0.5771823
    return g * a - 2.5894785e-07


@triton.jit
def digamma_1p(a):
    """Digamma of 1 + a for a in [0, 1]."""
    g = -0.0781171529 * a + 0.347152178
    g = g * a - 0.716301002
    g = g * a + 0.992214496
    g = g * a - 1.18918447
    g = g * a + 1.64422301
    return g * a - 0.577209192


@triton.jit
def moment(t):
    """The truncated noise's mean factor for t in [0, 1]."""
    m = -0.0117652298 * t + 0.0661905171
    m = m * t - 0.178571503
    m = m * t + 0.411363778
    m = m * t - 0.45650978
    return m * t + 0.999998002


@triton.jit
def inverse_moment(t):
    """One over the truncated noise's mean factor for t in [0, 1]."""
    m = -0.00858963133 * t + 0.0632985062
    m = m * t - 0.104743033
    m = m * t - 0.20268309
    m = m * t + 0.456510839
    return m * t + 1.00000175


@triton.jit
def moment_slope(t):
    """The derivative of the mean factor's natural logarithm for t in [0, 1]."""
    m = 0.0182897315 * t - 0.0447104738
    m = m * t - 0.0909369504
    m = m * t + 0.618033983
    return m * t - 0.456662571


@triton.jit
def gamma_1p(t):
    """Gamma of 1 + t for t in [0, 1]."""
    g = 0.0760202144 * t - 0.32478984
    g = g * t + 0.668227391
    g = g * t - 0.819337262
    g = g * t + 0.976400195
    g = g * t - 0.576507435
    return g * t + 0.999993368
