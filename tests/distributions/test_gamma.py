"""The gamma distribution against scipy, integration and Monte Carlo."""

import math

import mpmath as mp
import pytest
import torch
from density_oracles import tensor
from scipy import integrate, stats

from babn.distributions import Gamma

PARAMETERS = [(0.2, 1.0), (1.0, 3.0), (7.5, 1e-2), (80.0, 20.0)]
parameters = pytest.mark.parametrize(("alpha", "beta"), PARAMETERS)


def reference(alpha, beta):
    return stats.gamma(alpha, scale=1 / beta)


@parameters
def test_density_integrates_to_one(alpha, beta):
    p = Gamma(tensor(math.log(alpha)), beta)

    def density_of_log(log_s):
        return math.exp(p.log_prob(torch.tensor([log_s], dtype=torch.float64)).item() + log_s)

    mode = math.log(alpha / beta)
    area, _ = integrate.quad(density_of_log, mode - 40 / alpha**0.7, mode + 6, points=[mode])
    assert area == pytest.approx(1, abs=1e-5)


@parameters
def test_log_prob_is_scipys(alpha, beta):
    log_s = math.log(alpha / beta) + torch.linspace(-3, 1, 9, dtype=torch.float64)
    expected = torch.from_numpy(reference(alpha, beta).logpdf(log_s.exp().numpy()))
    torch.testing.assert_close(Gamma(tensor(math.log(alpha)), beta).log_prob(log_s), expected)


@parameters
def test_moments_are_scipys(alpha, beta):
    p, expected = Gamma(tensor(math.log(alpha)), tensor(beta)), reference(alpha, beta)
    assert p.log_mean.exp().item() == pytest.approx(expected.mean())
    assert p.relative_std.item() == pytest.approx(expected.std() / expected.mean())


@parameters
def test_samples_follow_the_distribution(alpha, beta):
    p = Gamma(torch.full((20_000,), math.log(alpha), dtype=torch.float64), beta)
    s = p.log_sample(torch.Generator().manual_seed(0)).exp()
    assert stats.kstest(s.numpy(), reference(alpha, beta).cdf).pvalue > 1e-3


@parameters
def test_samples_have_the_stated_moments(alpha, beta):
    p = Gamma(torch.full((100_000,), math.log(alpha)), beta)
    relative = (p.log_sample(torch.Generator().manual_seed(1)) - p.log_mean).double().exp()
    assert abs(relative.mean() - 1) < 5 * relative.std() / len(relative) ** 0.5
    spread_error = (relative - 1).square().std() / len(relative) ** 0.5 / (2 * relative.std())
    assert abs(relative.std() - p.relative_std[0]) < 5 * spread_error


def test_samples_of_tiny_shapes_do_not_underflow():
    # s^alpha tends to a uniform variable as alpha tends to zero.
    p = Gamma(torch.full((20_000,), math.log(1e-5)))
    uniform = (p.log_sample(torch.Generator().manual_seed(2)) * 1e-5).exp()
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("log_alpha", [-80.0, -14.0, -1.0, 0.0, 0.7, 4.6])
def test_log_gamma_of_shape_in_float32(log_alpha):
    p = Gamma(torch.tensor(log_alpha))
    # The shape itself is rounded, so log alpha is known to half a unit in its last place.
    expected = mp.loggamma(mp.exp(mp.mpf(log_alpha)))
    assert abs(p.log_gamma_of_shape.item() - expected) < 1e-6 * max(1, abs(expected))


def test_same_generator_same_draws():
    p = Gamma(torch.zeros(10))
    first, second = (p.log_sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, p.log_sample(torch.Generator().manual_seed(4)))
