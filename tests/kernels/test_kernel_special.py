"""Special functions inside kernels, against double precision."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import special
from small_kernels import (
    applied,
    coarse_softplus_at,
    digamma_at,
    log_gamma_at,
    log_moment_at,
    log_moment_slope_at,
    short_softplus_at,
    softplus_at,
)
from torch import Tensor

from babn.kernels.special import (
    LARGEST_NOISE,
    digamma_1p,
    gamma_1p,
    inverse_moment,
    log_gamma_1p,
    moment,
    moment_rest,
    moment_rest_slope,
    moment_slope,
    stirling_rest,
    stirling_rest_slope,
)

LN2 = math.log(2)
LOW, HIGH = -math.log(0.9), -math.log(0.1)
"""The exponential variable at the quantiles 0.1 and 0.9."""


def unit_grid(device: torch.device, lowest: float = 1e-4) -> Tensor:
    """Numbers of (0, 1], evenly spaced and also dense towards zero."""
    even = torch.linspace(lowest, 1, 4001, dtype=torch.float64)
    dense = torch.logspace(math.log10(lowest), 0, 1001, dtype=torch.float64)
    return torch.cat([even, dense]).clamp(max=1).float().to(device)


def shapes(device: torch.device) -> Tensor:
    """Values of k."""
    return torch.logspace(-4, 4, 4001, dtype=torch.float64).float().to(device)


def double(x: Tensor) -> np.ndarray:
    return x.double().cpu().numpy()


def worst(value: Tensor, expected: np.ndarray, weight: np.ndarray | float = 1.0) -> float:
    return float(np.abs((value.numpy() - expected) * weight).max())


def stirling_rest_of(y: np.ndarray) -> np.ndarray:
    t = 1 / y - 1
    return special.gammaln(1 + t) - (t + 0.5) * np.log1p(t) + t


def tilted_moments(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""M(y), and the mean of s in the same integral.

    With $x = b e^{-sy}$, $b$ the largest exponential,
    $E[x^t] = b^t y \frac{b}{0.8} \int_0^{\log(b/a)/y} e^{-s} e^{-x} ds$.
    """
    nodes, weights = np.polynomial.legendre.leggauss(128)
    end = np.minimum(math.log(HIGH / LOW) / y, 45.0)[:, None]
    s = end * (nodes + 1) / 2
    terms = weights * end / 2 * np.exp(-s - HIGH * np.exp(-s * y[:, None]))
    integral = terms.sum(1)
    return np.log(HIGH / 0.8 * integral), (s * terms).sum(1) / integral


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 7.0, 40.0])
def test_the_integral_is_the_truncated_moment(t: float) -> None:
    rest, mean = tilted_moments(np.array([1 / (1 + t)]))
    expected = mp.log(mp.gammainc(1 + t, LOW, HIGH) / 0.8)
    assert t * math.log(HIGH) - math.log1p(t) + rest[0] == pytest.approx(float(expected), abs=1e-12)
    slope = mp.diff(lambda x: mp.log(mp.gammainc(1 + x, LOW, HIGH)), t)
    assert math.log(HIGH) - mean[0] / (1 + t) == pytest.approx(float(slope), abs=1e-9)


def test_largest_noise_is_the_log_of_the_largest_exponential() -> None:
    assert LARGEST_NOISE.value == pytest.approx(math.log2(HIGH), abs=1e-8)


def test_stirling_rest_is_right_to_2e_7(device: torch.device) -> None:
    y = unit_grid(device)
    assert worst(LN2 * applied(stirling_rest, y), stirling_rest_of(double(y))) < 2e-7


def test_moment_rest_is_right_to_6e_6(device: torch.device) -> None:
    y = unit_grid(device)
    rest, _ = tilted_moments(double(y))
    assert worst(LN2 * applied(moment_rest, y), rest) < 6e-6


def test_log_gamma_1p_is_right_to_4e_7(device: torch.device) -> None:
    a = torch.linspace(0, 1, 5001, device=device)
    assert worst(applied(log_gamma_1p, a), special.gammaln(1 + double(a))) < 4e-7


def test_digamma_1p_is_the_slope_of_log_gamma_1p(device: torch.device) -> None:
    a = torch.linspace(0, 1, 5001, device=device)
    assert worst(applied(digamma_1p, a), special.digamma(1 + double(a))) < 7e-6


def test_moments_of_large_k_are_right_to_7e_6(device: torch.device) -> None:
    t = torch.linspace(0, 1, 5001, device=device)
    rest, mean = tilted_moments(1 / (1 + double(t)))
    expected = np.exp(double(t) * math.log(HIGH) - np.log1p(double(t)) + rest)
    assert worst(applied(moment, t), expected, 1 / expected) < 2.5e-6
    assert worst(applied(inverse_moment, t), 1 / expected, expected) < 2.5e-6
    slope = math.log(HIGH) - mean / (1 + double(t))
    assert worst(applied(moment_slope, t), slope) < 1e-5
    gamma = special.gamma(1 + double(t))
    assert worst(applied(gamma_1p, t), gamma, 1 / gamma) < 7e-6


def test_slope_of_stirling_rest_weighted_as_in_digamma(device: torch.device) -> None:
    y = unit_grid(device)
    t = 1 / double(y) - 1
    weighted = np.log1p(t) + (t + 0.5) * double(y) - 1 - special.digamma(1 + t)
    value = applied(stirling_rest_slope, y) * y.double().cpu() ** 2
    assert worst(value, weighted) < 4e-6


def test_slope_of_moment_rest_weighted_as_in_log_moment_slope(device: torch.device) -> None:
    y = unit_grid(device)
    _, mean = tilted_moments(double(y))
    value = applied(moment_rest_slope, y) * y.double().cpu() ** 2
    assert worst(value, double(y) * (mean - 1)) < 1.3e-3


# A relative part for float32, in which logarithms are right to 2^-22; an absolute part for the
# polynomials, whose slopes are at their worst at the ends.


def test_log_gamma_for_every_k(device: torch.device) -> None:
    k = shapes(device)
    expected = special.gammaln(1 + 1 / double(k))
    np.testing.assert_allclose(LN2 * applied(log_gamma_at, k), expected, rtol=1e-6, atol=1e-6)


def test_digamma_for_every_k(device: torch.device) -> None:
    k = shapes(device)
    expected = special.digamma(1 + 1 / double(k))
    np.testing.assert_allclose(applied(digamma_at, k), expected, rtol=5e-7, atol=4e-6)


def test_log_moment_for_every_k(device: torch.device) -> None:
    k = shapes(device)
    t = 1 / double(k)
    rest, _ = tilted_moments(1 / (1 + t))
    expected = t * math.log(HIGH) - np.log1p(t) + rest
    np.testing.assert_allclose(LN2 * applied(log_moment_at, k), expected, rtol=5e-7, atol=7e-6)


def test_slope_of_the_log_moment_for_every_k(device: torch.device) -> None:
    k = shapes(device)
    _, mean = tilted_moments(1 / (1 + 1 / double(k)))
    expected = math.log(HIGH) - mean / (1 + 1 / double(k))
    value = applied(log_moment_slope_at, k)
    np.testing.assert_allclose(value, expected, rtol=0, atol=1.3e-3)
    # The gradient of k takes it times 1/k^2, which takes the error at large k away.
    weight = np.minimum(1, double(k) ** -2.0)
    assert worst(value, expected, weight) < 4e-4


def test_precise_softplus_keeps_its_digits_where_it_is_tiny(device: torch.device) -> None:
    # At worst at e^x = 1e-3, where 1 + e^x has lost three digits.
    x = torch.linspace(-80, 87, 8001, device=device)
    np.testing.assert_allclose(
        LN2 * applied(softplus_at, x), np.logaddexp(0, double(x)), rtol=3e-4, atol=0
    )


def test_coarse_softplus_is_right_to_float32_of_one(device: torch.device) -> None:
    x = torch.linspace(-80, 87, 8001, device=device)
    np.testing.assert_allclose(
        LN2 * applied(coarse_softplus_at, x), np.logaddexp(0, double(x)), rtol=4e-7, atol=3e-7
    )


def test_softplus_without_a_logarithm_has_four_digits_everywhere(device: torch.device) -> None:
    x = torch.linspace(-80, 3e4, 60001, device=device)
    x = torch.cat([x, torch.linspace(-20, 20, 8001, device=device)])
    np.testing.assert_allclose(
        applied(short_softplus_at, x), np.logaddexp(0, double(x)), rtol=6e-5, atol=0
    )
