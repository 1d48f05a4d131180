"""The attention model's evidence against scipy and Monte Carlo."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from babn.errors import ConfigError
from babn_paper.simulation.attention_model import AttentionModel, beta_rule


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("a", "b"), [(0.3, 0.9), (0.5, 0.5), (1.0, 1.0), (0.05, 0.6), (3.0, 0.4), (0.2, 1.8)]
)
def test_beta_rule_is_scipys(a, b):
    nodes, masses = beta_rule(a, b, 12)
    expected, weights = special.roots_jacobi(12, b - 1, a - 1)
    np.testing.assert_allclose(nodes, (1 + expected) / 2, atol=1e-10)
    np.testing.assert_allclose(masses, weights / weights.sum(), rtol=1e-6)


def model(alpha, deviation=0.3):
    alpha = tensor(alpha)
    values = tensor([[1.0, 0.0], [-0.5, 0.8], [0.2, -1.0], [0.6, 0.6]])[: len(alpha)]
    return AttentionModel(alpha.log(), values, deviation)


def test_quadrature_has_the_moments_of_the_dirichlet():
    weights, log_mass = model([0.5, 0.2, 0.3, 0.4]).quadrature(10)
    alpha = tensor([0.5, 0.2, 0.3, 0.4])
    exact = stats.dirichlet(alpha.numpy())
    mass = log_mass.exp()
    torch.testing.assert_close(mass.sum(), tensor(1.0))
    torch.testing.assert_close(mass @ weights, torch.from_numpy(exact.mean()))
    covariance = (weights.T * mass) @ weights - torch.outer(mass @ weights, mass @ weights)
    torch.testing.assert_close(covariance, torch.from_numpy(exact.cov()))


def test_evidence_of_two_keys_is_scipys():
    two = model([1.4, 2.3])
    seen = tensor([[0.3, 0.2]])

    def integrand(w):
        weights = tensor([w, 1 - w])
        return stats.beta(1.4, 2.3).pdf(w) * two.log_likelihood(weights, seen[0]).exp().item()

    expected = math.log(integrate.quad(integrand, 0, 1)[0])
    assert two.log_evidence(seen).item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("alpha", [[0.5, 0.2, 0.3], [0.4, 0.3, 0.2, 0.1]])
def test_evidence_is_the_mean_likelihood_of_prior_draws(alpha):
    chosen = model(alpha)
    seen = tensor([[0.3, 0.2], [-0.4, 0.5]])
    draws = chosen.draw_weights(200_000, torch.Generator().manual_seed(0))
    for each, log_evidence in zip(seen, chosen.log_evidence(seen), strict=True):
        likelihood = chosen.log_likelihood(draws, each).exp()
        error = likelihood.std() / len(draws) ** 0.5
        assert abs(likelihood.mean() - log_evidence.exp()) < 4 * error
    torch.testing.assert_close(chosen.log_evidence(seen, 24), chosen.log_evidence(seen, 48))


def test_a_deviation_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"deviation=0\.0"):
        model([1.0, 1.0], 0.0)
