"""The lognormal distribution against scipy, integration and Monte Carlo."""

import math

import pytest
import torch
from density_oracles import tensor
from scipy import integrate, stats

from babn.distributions import LogNormal

PARAMETERS = [(-3.0, 0.1), (0.0, 1.0), (5.0, 0.5)]
parameters = pytest.mark.parametrize(("mu", "sigma"), PARAMETERS)


def reference(mu, sigma):
    return stats.lognorm(sigma, scale=math.exp(mu))


@parameters
def test_density_integrates_to_one(mu, sigma):
    q = LogNormal(tensor(mu), tensor(sigma))

    def density_of_log(log_s):
        return math.exp(q.log_prob(torch.tensor([log_s], dtype=torch.float64)).item() + log_s)

    area, _ = integrate.quad(density_of_log, mu - 9 * sigma, mu + 9 * sigma)
    assert area == pytest.approx(1, abs=1e-7)


@parameters
def test_log_prob_is_scipys(mu, sigma):
    log_s = mu + sigma * torch.linspace(-3, 3, 9, dtype=torch.float64)
    expected = torch.from_numpy(reference(mu, sigma).logpdf(log_s.exp().numpy()))
    torch.testing.assert_close(LogNormal(tensor(mu), tensor(sigma)).log_prob(log_s), expected)


@parameters
def test_moments_are_scipys(mu, sigma):
    q, expected = LogNormal(tensor(mu), tensor(sigma)), reference(mu, sigma)
    assert q.log_mean.exp().item() == pytest.approx(expected.mean())
    assert q.relative_std.item() == pytest.approx(expected.std() / expected.mean())


@parameters
def test_samples_follow_the_distribution(mu, sigma):
    q = LogNormal(torch.full((20_000,), mu), torch.tensor(sigma))
    s = q.log_sample(torch.Generator().manual_seed(0)).exp()
    assert stats.kstest(s.numpy(), reference(mu, sigma).cdf).pvalue > 1e-3


@pytest.mark.parametrize("noise", ["exact", "truncated"])
@parameters
def test_samples_have_the_stated_moments(noise, mu, sigma):
    q = LogNormal(torch.full((200_000,), mu), torch.tensor(sigma), noise)
    relative = (q.log_sample(torch.Generator().manual_seed(1)) - q.log_mean).double().exp()
    assert abs(relative.mean() - 1) < 5 * relative.std() / len(relative) ** 0.5
    spread_error = (relative - 1).square().std() / len(relative) ** 0.5 / (2 * relative.std())
    assert abs(relative.std() - q.relative_std) < 5 * spread_error


def test_samples_are_reparameterised():
    mu, sigma = tensor(-1.0, 2.0), tensor(0.5, 3.0)
    log_s = LogNormal(mu, sigma).log_sample(torch.Generator().manual_seed(0))
    by_mu, by_sigma = torch.autograd.grad(log_s.sum(), (mu, sigma))
    torch.testing.assert_close(by_mu, torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(by_sigma, (log_s - mu) / sigma)
