"""Welch's t-test against scipy."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from babn.prediction.t_tests import regularized_beta, welch_p_value


def scipy_p_value(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return stats.ttest_ind(a, b, equal_var=False).pvalue


def ours(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return welch_p_value(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def beta(x: float, a: float, b: float) -> float:
    return regularized_beta(*(torch.tensor(v, dtype=torch.float64) for v in (x, a, b))).item()


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 60),
    gap=st.floats(0, 100),
    log_ratio=st.floats(-6, 6),
)
def test_p_values_are_those_of_scipy(seed: int, n: int, gap: float, log_ratio: float) -> None:
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(n, 3)), gap + 10**log_ratio * draw.normal(size=(n, 3))
    np.testing.assert_allclose(ours(a, b), scipy_p_value(a, b), rtol=1e-8, atol=1e-200)


@pytest.mark.thorough
@settings(deadline=None)
@given(n=st.integers(2, 5000), log_gap=st.floats(-6, 2))
def test_p_values_of_many_samples(n: int, log_gap: float) -> None:
    """From one to ten thousand degrees of freedom."""
    quantiles = stats.norm.ppf((np.arange(n) + 0.5) / n)[:, None]
    a, b = quantiles, quantiles + 10**log_gap
    expected = scipy_p_value(a, b)
    assume(expected[0] > 1e-200)
    np.testing.assert_allclose(ours(a, b), expected, rtol=1e-8)


@given(degrees=st.floats(1, 1e4), log_p=st.floats(-200, -1e-3))
def test_tails_of_the_t_distribution(degrees: float, log_p: float) -> None:
    x = special.betaincinv(degrees / 2, 0.5, 10**log_p)
    assume(1e-300 < x < 1)
    expected = special.betainc(degrees / 2, 0.5, x)
    assert beta(x, degrees / 2, 0.5) == pytest.approx(expected, rel=1e-8)


@given(st.floats(0.5, 5e3), st.floats(0.5, 5e3), st.floats(1e-6, 1 - 1e-6))
def test_incomplete_beta_is_that_of_scipy(a: float, b: float, x: float) -> None:
    assert beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-200)


@given(st.floats(0.5, 5e3), st.floats(0.5, 5e3))
def test_incomplete_beta_runs_from_zero_to_one(a: float, b: float) -> None:
    assert beta(0.0, a, b) == 0
    assert beta(1.0, a, b) == 1


def test_without_spread_the_p_value_is_zero_or_one() -> None:
    same, other = torch.full((5, 1), 0.3), torch.full((5, 1), 0.7)
    assert welch_p_value(same, same) == 1
    assert welch_p_value(same, other) == 0


def test_spread_in_one_of_the_two() -> None:
    constant, spread = np.full(6, 0.5), np.array([0.1, 0.4, 0.2, 0.3, 0.4, 0.1])
    expected = stats.ttest_1samp(spread, 0.5).pvalue
    assert ours(constant, spread) == pytest.approx(expected, rel=1e-8)


def test_equal_means_have_p_value_one() -> None:
    a = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert welch_p_value(a, a.flip(0)) == pytest.approx(1.0)


@pytest.mark.parametrize("samples", [0, 1])
def test_too_few_samples_give_nan(samples: int) -> None:
    x = torch.rand(samples, 4)
    assert welch_p_value(x, x).isnan().all()
    assert welch_p_value(x, x).shape == (4,)
