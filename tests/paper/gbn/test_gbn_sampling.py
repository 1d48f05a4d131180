"""Posteriors by Gibbs sampling against exact ones."""

import math

import numpy as np
import pytest
import torch
from geweke import effective_sample_size
from network_cases import columns, generator, scalar, tensor
from scipy import special, stats

from babn.errors import ConfigError
from babn_paper.gbn import GammaBeliefNetwork, sample_posterior

pytestmark = pytest.mark.thorough


def test_one_layer_is_conjugate():
    network = scalar(1.6, shape=0.8, rate=0.5)
    counts = tensor([[0.0], [3.0], [25.0]])
    found = sample_posterior(network, counts, 40, 5, 500, generator=generator(0)).log_units[0]
    for i, count in enumerate(counts[:, 0].tolist()):
        exact = stats.gamma(0.8 + count, scale=1 / (0.5 + 1.6))
        assert stats.kstest(found[:, :, i].exp().flatten().numpy(), exact.cdf).pvalue > 1e-3


def quadrature(count: float, upper=0.9, lower=1.4, shape=1.2, rate=0.6):
    """Means and variances of both units; the lower one integrated by hand, the upper on a grid."""
    log_s = np.linspace(-40, 5, 200_001)
    r = upper * np.exp(log_s)
    log_density = stats.gamma(shape, scale=1 / rate).logpdf(np.exp(log_s)) + log_s
    log_density += stats.nbinom(r, rate / (rate + lower)).logpmf(count)
    weight = special.softmax(log_density)
    below = stats.gamma(r + count, scale=1 / (rate + lower))
    moments = [(np.exp(log_s), np.exp(2 * log_s)), (below.mean(), below.var() + below.mean() ** 2)]
    means = [(weight @ first, weight @ second) for first, second in moments]
    return [(first, second - first**2) for first, second in means]


@pytest.mark.parametrize("count", [0.0, 1.0, 12.0])
def test_two_layers_agree_with_quadrature(count):
    network = scalar(0.9, 1.4, shape=1.2, rate=0.6)
    found = sample_posterior(network, tensor([[count]]), 150, 100, 500, generator=generator(1))
    for draws, (mean, variance) in zip(found.log_units, quadrature(count), strict=True):
        units = draws[..., 0, 0].exp()
        size = effective_sample_size(units)
        assert size > 5000
        assert abs(units.mean() - mean) < 4 * math.sqrt(variance / size)
        assert units.var().item() == pytest.approx(variance, rel=0.06)


def test_known_units_are_recovered_from_many_counts():
    # Sixty counts for each observation say much about three units.
    weights = 20 * columns(60, 3, 0)
    network = GammaBeliefNetwork(tensor([2.0, 2.0, 2.0]), (weights,), 1.0)
    truth, counts = network.draw(40, generator(2))
    found = sample_posterior(network, counts, 300, 200, 2, generator=generator(3)).log_units[0]
    draws = found.flatten(0, 1).exp()
    z = (truth[0].exp() - draws.mean(0)) / draws.std(0)
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    assert np.corrcoef(draws.mean(0).flatten(), truth[0].exp().flatten())[0, 1] > 0.8


def test_evidence_of_the_scalar_case_is_negative_binomial():
    network = scalar(1.6, shape=0.8, rate=0.5)
    _, counts = network.draw(100_000, generator(8))
    share = torch.bincount(counts.flatten().long(), minlength=10)[:10] / len(counts)
    exact = stats.nbinom(0.8, 0.5 / 2.1).pmf(np.arange(10))
    np.testing.assert_allclose(share, exact, atol=5 * math.sqrt(0.25 / len(counts)))


def test_same_generator_same_draws_and_thinning_skips():
    network, counts = scalar(0.9, 1.4), tensor([[2.0]])
    every = sample_posterior(network, counts, 6, 2, 3, generator=generator(9)).log_units[1]
    third = sample_posterior(network, counts, 2, 2, 3, 3, generator=generator(9)).log_units[1]
    assert torch.equal(third, every[2::3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": torch.tensor([[0.5]])}, "counts holds 0.5"),
        ({"counts": torch.tensor([[1.0, 2.0]])}, "counts has 2 columns and the network 1"),
        ({"draws": 0}, "draws=0"),
        ({"warmup": -1}, "warmup=-1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sample_posterior(**{"network": scalar(1.0), "counts": torch.ones(1, 1), **arguments})
