r"""Derives the polynomial coefficients of the kernels.

    python tools/fit_polynomials.py

With $y = 1/(1+t)$, $R$ and $M$ are the bounded parts of $\log\Gamma(1+t)$ and of the log moment
$\log m(t)$ of truncated noise; `src/babn/kernels/special.py` has the formulas. Polynomials for $R$,
$M$ and $\log\Gamma$ interpolate at Chebyshev points, and their derivatives are used too. The others
are minimax, by Lawson's iteratively reweighted least squares.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.polynomial import Polynomial, chebyshev
from scipy import special

Array: TypeAlias = np.ndarray
Function: TypeAlias = Callable[[Array], Array]

LOW, HIGH = -math.log(0.9), -math.log(0.1)
"""Quantiles 0.1 and 0.9 of a standard exponential variable."""

LN2 = math.log(2)


def interpolant(f: Function, degree: int, start: float = 0.0, end: float = 1.0) -> Polynomial:
    """The polynomial through `f` at the Chebyshev points of an interval."""
    x = chebyshev.chebpts1(degree + 1)
    series = chebyshev.chebfit(x, f((start + end) / 2 + (end - start) / 2 * x), degree)
    to_unit = Polynomial([-(start + end) / (end - start), 2 / (end - start)])
    return Polynomial(chebyshev.cheb2poly(series))(to_unit)


def minimax(
    f: Function, degree: int, relative: bool = False, start: float = 0.0, lowest: int = 0
) -> Polynomial:
    """The polynomial with the smallest largest error on an interval from `start` to 1.

    Args:
        f: The function.
        degree: Degree of the polynomial.
        relative: Whether errors are relative to `f`.
        start: Start of the interval.
        lowest: The lowest power.
    """
    t = (1 + start) / 2 - (1 - start) / 2 * np.cos(np.linspace(0, np.pi, 3001))
    values = f(t)
    scale = 1 / np.abs(values) if relative else np.ones_like(t)
    powers = np.vander(t, degree + 1, increasing=True)[:, lowest:]
    weights = np.full_like(t, 1 / len(t))
    for _ in range(300):
        rows = np.sqrt(weights) * scale
        found = np.linalg.lstsq(powers * rows[:, None], values * rows, rcond=None)[0]
        weights = weights * np.abs(powers @ found - values) * scale
        weights /= weights.sum()
    return Polynomial([*[0.0] * lowest, *found])


def stirling_rest(y: Array) -> Array:
    """R(y), by its series where y is tiny."""
    t = 1 / np.maximum(y, 1e-3) - 1
    value = special.gammaln(1 + t) - (t + 0.5) * np.log1p(t) + t
    series = 0.5 * math.log(2 * math.pi) - 1 + y / 12 - y**3 / 360
    return np.where(y < 1e-3, series, value)


def moment_rest(y: Array) -> tuple[Array, Array]:
    r"""M(y), and the mean of s in the same integral, by Gauss-Legendre quadrature.

    With $x = b e^{-sy}$, $b$ the largest exponential,
    $E[x^t] = b^t y \frac{b}{0.8} \int_0^{\log(b/a)/y} e^{-s} e^{-x} ds$.
    """
    nodes, weights = np.polynomial.legendre.leggauss(128)
    end = np.minimum(math.log(HIGH / LOW) / np.maximum(y, 1e-12), 45.0)[:, None]
    s = end * (nodes + 1) / 2
    terms = weights * end / 2 * np.exp(-s - HIGH * np.exp(-s * y[:, None]))
    integral = terms.sum(1)
    return np.log(HIGH / 0.8 * integral), (s * terms).sum(1) / integral


def moment(t: Array) -> Array:
    """The mean factor m(t) of truncated noise."""
    return np.exp(t * math.log(HIGH) - np.log1p(t) + moment_rest(1 / (1 + t))[0])


def moment_slope(t: Array) -> Array:
    """The derivative of log m(t)."""
    return math.log(HIGH) - moment_rest(1 / (1 + t))[1] / (1 + t)


def fits() -> dict[str, Polynomial]:
    """The polynomials by the names of the functions and constants that have them.

    The variable is y for `stirling_rest` and its slope, z = 2y - 1 for `moment_rest` and its slope,
    e^-|x| for `softplus`, and the argument itself for the others.
    """
    stirling = interpolant(lambda y: stirling_rest(y) / LN2, 5)
    rest = interpolant(lambda z: moment_rest((z + 1) / 2)[0] / LN2, 11, -1.0)
    return {
        "stirling_rest": stirling,
        "stirling_rest_slope": stirling.deriv() * LN2,
        "moment_rest": rest,
        "moment_rest_slope": rest.deriv() * 2 * LN2,
        "log_gamma_1p": interpolant(lambda a: special.gammaln(1 + a), 7),
        "digamma_1p": minimax(lambda a: special.digamma(1 + a), 6),
        "moment": minimax(moment, 5, relative=True),
        "inverse_moment": minimax(lambda t: 1 / moment(t), 5, relative=True),
        "moment_slope": minimax(moment_slope, 4),
        "gamma_1p": minimax(lambda t: special.gamma(1 + t), 6, relative=True),
        "softplus": minimax(np.log1p, 5, relative=True, start=1e-6, lowest=1),
    }


if __name__ == "__main__":
    for name, polynomial in fits().items():
        print(name, *(f"{c:.9g}" for c in polynomial.coef))
