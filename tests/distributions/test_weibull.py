"""The Weibull distribution against scipy, integration and Monte Carlo."""

import math

import pytest
import torch
from density_oracles import tensor
from scipy import integrate, stats

from babn.distributions import Weibull

PARAMETERS = [(0.4, -3.0), (1.0, 0.0), (2.5, 4.0), (20.0, 0.5)]
parameters = pytest.mark.parametrize(("k", "log_lam"), PARAMETERS)


def reference(k, log_lam):
    return stats.weibull_min(k, scale=math.exp(log_lam))


@parameters
def test_density_integrates_to_one(k, log_lam):
    q = Weibull(tensor(k), tensor(log_lam))

    def density_of_log(log_s):
        return math.exp(q.log_prob(torch.tensor([log_s], dtype=torch.float64)).item() + log_s)

    ends = log_lam - 40 / k, log_lam + 5 / k
    area, _ = integrate.quad(density_of_log, *ends, points=[log_lam])
    assert area == pytest.approx(1, abs=1e-7)


@parameters
def test_log_prob_is_scipys(k, log_lam):
    log_s = log_lam + torch.linspace(-3, 1, 9, dtype=torch.float64) / k
    expected = torch.from_numpy(reference(k, log_lam).logpdf(log_s.exp().numpy()))
    torch.testing.assert_close(Weibull(tensor(k), tensor(log_lam)).log_prob(log_s), expected)


@parameters
def test_moments_are_scipys(k, log_lam):
    q, expected = Weibull(tensor(k), tensor(log_lam)), reference(k, log_lam)
    assert q.log_mean.exp().item() == pytest.approx(expected.mean())
    assert q.relative_std.item() == pytest.approx(expected.std() / expected.mean())


@parameters
def test_samples_follow_the_distribution(k, log_lam):
    q = Weibull(tensor(k), torch.full((20_000,), log_lam, dtype=torch.float64))
    log_s = q.log_sample(torch.Generator().manual_seed(0)).detach()
    assert stats.kstest(log_s.exp().numpy(), reference(k, log_lam).cdf).pvalue > 1e-3


@pytest.mark.parametrize("noise", ["exact", "truncated"])
@pytest.mark.parametrize(("k", "log_lam"), PARAMETERS[1:])
def test_samples_have_the_stated_moments(noise, k, log_lam):
    q = Weibull(torch.tensor(k), torch.full((200_000,), log_lam), noise)
    relative = (q.log_sample(torch.Generator().manual_seed(1)) - q.log_mean).double().exp()
    standard_error = relative.std() / len(relative) ** 0.5
    assert abs(relative.mean() - 1) < 5 * standard_error
    spread_error = (relative - 1).square().std() / len(relative) ** 0.5 / (2 * relative.std())
    assert abs(relative.std() - q.relative_std) < 5 * spread_error


def test_samples_are_reparameterised():
    k, log_lam = tensor(0.5, 3.0), tensor(-1.0, 2.0)
    log_s = Weibull(k, log_lam).log_sample(torch.Generator().manual_seed(0))
    # At fixed noise the quantile stays: k (log s - log lam) is constant.
    by_k, by_log_lam = torch.autograd.grad(log_s.sum(), (k, log_lam))
    torch.testing.assert_close(by_log_lam, torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(by_k, -(log_s - log_lam) / k)


def test_parameters_broadcast():
    q = Weibull(torch.tensor(2.0), torch.zeros(3, 1, 4))
    assert q.log_sample().shape == q.log_mean.shape == (3, 1, 4)
    wider = Weibull(torch.ones(5, 4), torch.zeros(4)).log_sample()
    assert wider.shape == (5, 4)
    # No draw is used twice.
    assert len(q.log_sample().unique()) == 12 and len(wider.unique()) == 20


def test_a_given_mean_is_kept():
    log_mean = torch.tensor(0.25)
    assert Weibull(torch.tensor(1.0), torch.tensor(0.0), log_mean=log_mean).log_mean is log_mean
