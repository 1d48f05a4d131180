"""Noise: the distribution of the draws, and the moments that go with it."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from density_oracles import moment, moment_slope, relative_error, relative_std, tensor
from scipy import stats

from babn.distributions import Noise, noise_for

FAMILIES = ["weibull", "lognormal"]
SCALES = [1e-3, 1e-2, 0.1, 0.5, 1.0, 2.0, 9.0, 20.0, 100.0]
families = pytest.mark.parametrize("family", FAMILIES)
scales = pytest.mark.parametrize("scale", SCALES)
truncations = pytest.mark.parametrize("name", ["exact", "truncated"])


def draws(family, name, count=20_000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return noise_for(family, name).sample(torch.empty(count, dtype=torch.float64), generator)


def quantile_of(family, g):
    """The uniform number that gives the noise g."""
    return stats.gumbel_l.cdf(g) if family == "weibull" else stats.norm.cdf(g)


@families
def test_exact_draws_follow_their_law(family):
    uniform = quantile_of(family, draws(family, "exact").numpy())
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("name", ["truncated", "truncated-paper"])
@families
def test_truncated_draws_follow_their_law(family, name):
    uniform = quantile_of(family, draws(family, name).numpy())
    assert uniform.min() >= 0.1 and uniform.max() <= 0.9
    assert stats.kstest(uniform, stats.uniform(0.1, 0.8).cdf).pvalue > 1e-3


@scales
@truncations
@families
def test_log_moment_in_float32(family, name, scale):
    t = torch.tensor(scale)
    expected = mp.log(moment(family, name == "truncated", t.item()))
    value = noise_for(family, name).log_moment(t).item()
    assert abs(value - expected) < 3e-7 * max(1, abs(expected))


@scales
@families
def test_truncated_log_moment_in_float64(family, scale):
    expected = mp.log(moment(family, True, scale))
    assert abs(noise_for(family, "truncated").log_moment(tensor(scale)).item() - expected) < 2e-7


@families
def test_truncated_log_moment_at_the_limits(family):
    noise = noise_for(family, "truncated")
    largest = {"weibull": math.log(math.log(10)), "lognormal": stats.norm.ppf(0.9)}[family]
    assert noise.log_moment(tensor(0.0)).item() == pytest.approx(0, abs=1e-7)
    assert noise.log_moment(tensor(1e8)).item() / 1e8 == pytest.approx(largest, rel=1e-6)


@pytest.mark.thorough
@scales
@truncations
@families
def test_slope_of_the_log_moment(family, name, scale):
    t = tensor(scale)
    (slope,) = torch.autograd.grad(noise_for(family, name).log_moment(t), t)
    expected = moment_slope(family, name == "truncated", scale)
    assert abs(slope.item() - expected) < 1e-5 * max(1, abs(expected))


@truncations
@families
def test_log_moment_gradcheck(family, name):
    assert torch.autograd.gradcheck(noise_for(family, name).log_moment, tensor(*SCALES))


@pytest.mark.thorough
@scales
@truncations
@families
def test_relative_std_in_float32(family, name, scale):
    t = torch.tensor(scale)
    with mp.workdps(30):
        expected = relative_std(family, name == "truncated", t.item())
    value = noise_for(family, name).relative_std(t).item()
    if expected > torch.finfo(torch.float32).max:
        assert 1e17 < value < math.inf
    else:
        assert relative_error(value, expected) < 1e-5


@truncations
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0])
@families
def test_mean_of_draws_is_the_stated_mean(family, name, scale):
    s = (scale * draws(family, name, 200_000, seed=1)).exp()
    stated = noise_for(family, name).log_moment(tensor(scale)).exp().item()
    assert abs(s.mean().item() - stated) < 5 * s.std().item() / len(s) ** 0.5


@pytest.mark.parametrize("scale", [1.0, 2.0])
@families
def test_mean_of_truncated_paper_draws_is_not_the_stated_mean(family, scale):
    s = (scale * draws(family, "truncated-paper", 200_000, seed=1)).exp()
    stated = noise_for(family, "truncated-paper").log_moment(tensor(scale)).exp().item()
    assert stated - s.mean().item() > 20 * s.std().item() / len(s) ** 0.5


def test_truncation_at_scale_one_is_as_the_design_says():
    noise = noise_for("weibull", "truncated")
    assert noise.log_moment(tensor(1.0)).exp().item() == pytest.approx(0.83, abs=5e-3)
    assert noise.relative_std(tensor(1.0)).item() == pytest.approx(0.68, abs=5e-3)


@pytest.mark.parametrize("name", ["exact", "truncated", "truncated-paper"])
@families
def test_draws_are_reproducible_by_generator(family, name):
    assert isinstance(noise_for(family, name), Noise)
    first = draws(family, name, 100, seed=7)
    assert torch.equal(first, draws(family, name, 100, seed=7))
    assert not torch.equal(first, draws(family, name, 100, seed=8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["exact", "truncated"])
@families
def test_draws_are_like_the_tensor_and_finite(family, name, dtype):
    like = torch.empty(300, 1000, dtype=dtype)
    g = noise_for(family, name).sample(like, torch.Generator().manual_seed(0))
    assert g.shape == like.shape and g.dtype == dtype
    assert torch.isfinite(g).all()


def test_a_drawn_zero_stays_finite(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, **_: self.zero_())
    g = noise_for("weibull", "exact").sample(torch.empty(3))
    assert torch.isfinite(g).all() and (g < np.log(1e-37)).all()
