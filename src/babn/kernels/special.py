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
numbers to zero. With Triton's own functions, forward issues 157 instructions per pair (`log2`) or
85 (division) in place of 79, and backward 252 or 157 in place of 134
(`tools/count_instructions.py`).
"""

import math
import os

import triton
import triton.language as tl

from babn.distributions import kl
from babn.distributions.noise import HIGH, LOW

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Whether kernels run through the interpreter, which has no PTX."""

LN2 = tl.constexpr(math.log(2))
LOG2_E = tl.constexpr(1 / math.log(2))
EULER = tl.constexpr(kl.EULER)

HIGHEST_REST, REST_RANGE = tl.constexpr(1 - LOW), tl.constexpr(HIGH - LOW)
"""1 - u for the uniform numbers u of truncated noise: the value at u = 0.1, and its range."""

LARGEST_NOISE = tl.constexpr(math.log2(-math.log1p(-HIGH)))
"""The largest base-2 log of truncated exponential noise."""


@triton.jit
def polynomial(x, COEFFICIENTS: tl.constexpr):
    """Evaluates a polynomial by Horner's rule; the highest power comes first."""
    value = COEFFICIENTS[0] * x + COEFFICIENTS[1]
    for i in tl.static_range(2, len(COEFFICIENTS)):
        value = value * x + COEFFICIENTS[i]
    return value


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
def small_log2(u):
    """-log2(1 - u) for small u, by its series, without cancellation."""
    return u * (u * (u * (0.36067376 * u + 0.48089835) + 0.72134752) + LOG2_E)


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
        value = tl.where(e < 0.03, -small_log2(-e), value)
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
        p = polynomial(e, (0.0413473, -0.15742724, 0.30630097, -0.49697782, 0.99994326))
        return p * e + tl.maximum(x, 0.0)


@triton.jit
def stirling_rest(y):
    """R(y) to base 2."""
    return polynomial(y, (
        -0.00010486713, 0.0013349206, -0.0046322966, 0.00013568922, 0.12021344,
        -0.11694682,
    ))  # fmt: skip


@triton.jit
def stirling_rest_slope(y):
    """The derivative of R to base e."""
    return polynomial(y, (-0.00036344, 0.0037011855, -0.009632595, 0.00018810520, 0.083325607))


@triton.jit
def moment_rest(y):
    """M(y) to base 2."""
    return polynomial(2.0 * y - 1.0, (
        0.023569199, -0.018242852, -0.06464797, 0.059525915, 0.048865438, -0.049632647,
        -0.040686174, 0.058348373, 0.094434884, -0.47753782, 0.83684348, -0.47083411,
    ))  # fmt: skip


@triton.jit
def moment_rest_slope(y):
    """The derivative of M to base e."""
    return polynomial(2.0 * y - 1.0, (
        0.3594123324, -0.252899624, -0.8065900422, 0.6601635216, 0.4741931656,
        -0.4128327492, -0.282015066, 0.3235520816, 0.3927436434, -1.324015988, 1.160111392,
    ))  # fmt: skip


@triton.jit
def log_gamma_1p(a):
    """Log-gamma of 1 + a for a in [0, 1], to base e."""
    return polynomial(a, (
        -0.010286857, 0.054258748, -0.13745192, 0.24341902, -0.39449911, 0.82174254,
        -0.5771823, -2.5894785e-07,
    ))  # fmt: skip


@triton.jit
def digamma_1p(a):
    """Digamma of 1 + a for a in [0, 1]."""
    return polynomial(a, (
        -0.0781171529, 0.347152178, -0.716301002, 0.992214496, -1.18918447, 1.64422301,
        -0.577209192,
    ))  # fmt: skip


@triton.jit
def moment(t):
    """The truncated noise's mean factor for t in [0, 1]."""
    return polynomial(t, (
        -0.0117652298, 0.0661905171, -0.178571503, 0.411363778, -0.45650978, 0.999998002,
    ))  # fmt: skip


@triton.jit
def inverse_moment(t):
    """One over the truncated noise's mean factor for t in [0, 1]."""
    return polynomial(t, (
        -0.00858963133, 0.0632985062, -0.104743033, -0.20268309, 0.456510839, 1.00000175,
    ))  # fmt: skip


@triton.jit
def moment_slope(t):
    """The derivative of the mean factor's natural logarithm for t in [0, 1]."""
    return polynomial(t, (0.0182897315, -0.0447104738, -0.0909369504, 0.618033983, -0.456662571))


@triton.jit
def gamma_1p(t):
    """Gamma of 1 + t for t in [0, 1]."""
    return polynomial(t, (
        0.0760202144, -0.32478984, 0.668227391, -0.819337262, 0.976400195, -0.576507435,
        0.999993368,
    ))  # fmt: skip
