"""KLs against integration, high precision and Monte Carlo."""

import math

import mpmath as mp
import pytest
import torch
from density_oracles import lognormal_lognormal as lognormal_oracle
from density_oracles import relative_error, tensor
from density_oracles import weibull_gamma as weibull_oracle
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from babn.distributions import Gamma, LogNormal, Weibull, lognormal_lognormal, weibull_gamma

modest = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


def kl_weibull_gamma(k, log_lam, alpha, beta=1.0):
    return weibull_gamma(Weibull(k, log_lam), Gamma(alpha.log(), beta))


def kl_lognormal_lognormal(mu_q, sigma_q, mu_p, sigma_p):
    return lognormal_lognormal(LogNormal(mu_q, sigma_q), LogNormal(mu_p, sigma_p))


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def grid(seed, *ranges, count=25):
    """The corners of a box and points inside it."""
    inside = torch.rand(count, len(ranges), generator=torch.Generator().manual_seed(seed))
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * len(ranges))
    low, high = torch.tensor(ranges, dtype=torch.float64).T
    return (low + (high - low) * torch.cat([corners, inside])).T


def scipy_divergence(q, p, log_low, log_high):
    def integrand(log_s):
        s = math.exp(log_s)
        return q.pdf(s) * s * (q.logpdf(s) - p.logpdf(s))

    points = q.ppf([0.01, 0.5, 0.99])
    return integrate.quad(integrand, log_low, log_high, points=list(map(math.log, points)))[0]


@pytest.mark.parametrize(
    ("k", "log_lam", "alpha", "beta"),
    [(1.0, 0.5, 1.0, 1.0), (0.7, -1.0, 0.1, 2.0), (4.0, 2.0, 9.0, 0.5), (30.0, 0.0, 1.0, 1.0)],
)
def test_weibull_gamma_is_the_integral(k, log_lam, alpha, beta):
    q, p = stats.weibull_min(k, scale=math.exp(log_lam)), stats.gamma(alpha, scale=1 / beta)
    expected = scipy_divergence(q, p, log_lam - 36 / k, log_lam + 4 / k)
    value = kl_weibull_gamma(tensor(k), tensor(log_lam), tensor(alpha), beta)
    assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("mu_q", "sigma_q", "mu_p", "sigma_p"),
    [(0.0, 1.0, 1.0, 1.0), (-2.0, 0.1, 0.0, 1.0), (1.0, 2.0, 1.5, 0.7)],
)
def test_lognormal_lognormal_is_the_integral(mu_q, sigma_q, mu_p, sigma_p):
    q, p = (stats.lognorm(s, scale=math.exp(m)) for m, s in ((mu_q, sigma_q), (mu_p, sigma_p)))
    expected = scipy_divergence(q, p, mu_q - 8 * sigma_q, mu_q + 8 * sigma_q)
    value = kl_lognormal_lognormal(*map(tensor, (mu_q, sigma_q, mu_p, sigma_p)))
    assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("beta", [1.0, 1e-6])
def test_weibull_gamma_is_right(beta):
    log_k, log_lam, log_alpha = grid(0, (-2.0, 3.0), (-30.0, 30.0), (-6.0, 2.0))
    k, alpha = 10**log_k, 10**log_alpha
    values = kl_weibull_gamma(k, log_lam, alpha, beta).tolist()
    with mp.workdps(30):
        for value, *at in zip(values, k.tolist(), log_lam.tolist(), alpha.tolist(), strict=True):
            expected = weibull_oracle(*at, beta)
            assert relative_error(value, expected) < 1e-9, at


def test_lognormal_lognormal_is_right():
    mu_q, log_q, mu_p, log_p = grid(1, (-30.0, 30.0), (-3.0, 2.0), (-29.0, 31.0), (-3.1, 2.2))
    parameters = mu_q, 10**log_q, mu_p, 10**log_p
    values = kl_lognormal_lognormal(*parameters).tolist()
    with mp.workdps(30):
        for value, *at in zip(values, *(x.tolist() for x in parameters), strict=True):
            assert relative_error(value, lognormal_oracle(*at)) < 1e-9, at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_of_rates_is_as_exact_as_a_number(dtype):
    k, log_lam, alpha = (torch.tensor(x) for x in ([0.9, 3.0], [0.1, -3.0], [1.0, 2.0]))
    beta = torch.tensor(0.9, dtype=dtype)
    expected = kl_weibull_gamma(k, log_lam, alpha, beta.item())
    torch.testing.assert_close(kl_weibull_gamma(k, log_lam, alpha, beta), expected)


@pytest.mark.parametrize(
    ("k", "log_lam", "alpha", "beta"), [(2.0, 1.0, 0.5, 1.0), (1.0, -2.0, 3.0, 4.0)]
)
def test_weibull_gamma_is_the_mean_of_the_log_ratio(k, log_lam, alpha, beta):
    q = Weibull(tensor(k), torch.full((100_000,), log_lam, dtype=torch.float64))
    log_s = q.log_sample(torch.Generator().manual_seed(0)).detach()
    ratio = q.log_prob(log_s) - Gamma(tensor(math.log(alpha)), beta).log_prob(log_s)
    value = kl_weibull_gamma(tensor(k), tensor(log_lam), tensor(alpha), beta)
    assert abs(ratio.mean() - value) < 5 * ratio.std() / len(ratio) ** 0.5


def test_lognormal_lognormal_is_the_mean_of_the_log_ratio():
    mu_q, sigma_q, mu_p, sigma_p = map(tensor, (1.0, 0.5, 0.0, 2.0))
    q, p = LogNormal(mu_q.expand(100_000), sigma_q), LogNormal(mu_p, sigma_p)
    log_s = q.log_sample(torch.Generator().manual_seed(0)).detach()
    ratio = q.log_prob(log_s) - p.log_prob(log_s)
    value = kl_lognormal_lognormal(mu_q, sigma_q, mu_p, sigma_p)
    assert abs(ratio.mean() - value) < 5 * ratio.std() / len(ratio) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_distributions_have_no_divergence(dtype):
    one, zero = torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
    assert kl_weibull_gamma(one, zero, one, 1.0).item() == pytest.approx(0, abs=1e-15)
    assert kl_lognormal_lognormal(one, one, one, one).item() == 0


@modest
@given(log_uniform(1e-2, 1e3), st.floats(-30, 30), log_uniform(1e-6, 1e2), log_uniform(1e-6, 1e3))
def test_weibull_gamma_is_not_negative(k, log_lam, alpha, beta):
    value = kl_weibull_gamma(tensor(k), tensor(log_lam), tensor(alpha), beta).item()
    assert value >= -1e-12


@modest
@given(*[st.floats(-30, 30), log_uniform(1e-3, 1e2)] * 2)
def test_lognormal_lognormal_is_not_negative(mu_q, sigma_q, mu_p, sigma_p):
    value = kl_lognormal_lognormal(*map(tensor, (mu_q, sigma_q, mu_p, sigma_p))).item()
    assert value >= -1e-12


def test_gradcheck():
    k, log_lam, alpha, beta = tensor(0.3, 1, 9), tensor(-2.0, 0, 3), tensor(0.01, 1, 20), tensor(2)
    assert torch.autograd.gradcheck(kl_weibull_gamma, (k, log_lam, alpha, beta))
    mu_p, sigma_p = tensor(0.0, 1, 2), tensor(0.2, 1, 5)
    assert torch.autograd.gradcheck(kl_lognormal_lognormal, (log_lam, k, mu_p, sigma_p))


def test_autocast_changes_nothing():
    x = [torch.tensor(v) for v in ([0.3, 20.0], [-9.0, 3.0], [1e-3, 30.0])]
    expected = kl_weibull_gamma(*x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(kl_weibull_gamma(*x), expected)
        inside = weibull_gamma(Weibull(x[0], x[1]), Gamma(x[2].log()))
    torch.testing.assert_close(inside, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("noise", ["truncated", "truncated-paper"])
def test_the_divergence_does_not_depend_on_the_noise(noise):
    k, log_lam, p = tensor(0.5, 4.0), tensor(0.3, -1.0), Gamma(tensor(-1.0))
    expected = weibull_gamma(Weibull(k, log_lam), p)
    torch.testing.assert_close(weibull_gamma(Weibull(k, log_lam, noise), p), expected)
