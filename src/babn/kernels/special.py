r"""Special functions inside kernels: logarithms to base 2, and short polynomials with known errors.

The hardware computes $2^x$ and $\log_2 x$, so all logarithms in the kernels are to base 2. With
$t = 1/k$ and $y = 1/(1+t)$, which runs over (0, 1],

$$\log\Gamma(1+t) = (t + \tfrac12)\log(1+t) - t + R(y), \qquad
\log m(t) = t\,Q(0.9) - \log(1+t) + M(y),$$

with $R$ and $M$ bounded and smooth. As natural logarithms, the polynomials below miss $R$ by at
most 2e-7, $M$ by at most 6e-6 and $\log\Gamma(1+a)$ on [0, 1] by at most 4e-7; the derivatives in
$t$ are right to 4e-6 (log-gamma) and 2e-3 (the truncated moment, worst at tiny $t$).
`tests/kernels/test_kernel_special.py` proves it.
"""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Whether kernels run on the CPU, where there is no machine code to inline."""

LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
EULER = tl.constexpr(0.57721566490153286)

LARGEST_NOISE = tl.constexpr(1.203254472699722)
"""The largest base-2 log of truncated exponential noise."""


@triton.jit
def exp2(x):
    """2^x; numbers too small for a normal float become zero."""
    if INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


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
def softplus_and_slope(x, PRECISE: tl.constexpr):
    """Softplus divided by log 2, and its slope, which is the logistic function.

    Where 1 + e^x rounds, so does its logarithm. Half-precision inputs carry less than that loses;
    for others the rounding is divided out again.
    """
    x = x * LOG2_E
    e = exp2(tl.minimum(x, 126.0))
    one = 1.0 + e
    value = log2(one)
    if PRECISE:
        rounded = one - 1.0
        value = tl.where(rounded > 0, value * (e / tl.where(rounded > 0, rounded, 1.0)), e * LOG2_E)
    return tl.maximum(value, x), e * reciprocal(one)


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
    g = -0.072007999 * a + 0.325552488
    g = g * a - 0.6872596
    g = g * a + 0.97367608
    g = g * a - 1.18349733
    g = g * a + 1.64348508
    return g * a - 0.5771823
