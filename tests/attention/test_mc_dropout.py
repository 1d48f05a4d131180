"""Dropout on attention weights: expectation and drop rate."""

import pytest
import torch
from attention_cases import make_method, make_scores, padding, posterior_of, repeated
from scipy import stats

from babn import McDropoutConfig
from babn.attention.noise_source import NoiseSource
from babn.errors import ConfigError

rates = pytest.mark.parametrize("p", [0.1, 0.5, 0.9])


def make_posterior(p):
    return posterior_of(make_method(McDropoutConfig(p=p)), make_scores(batch=1))


def draw(p):
    """Ten thousand samples of the weights of one example, and their softmax."""
    scores = make_scores(batch=1)
    many = posterior_of(make_method(McDropoutConfig(p=p)), repeated(scores, 10_000))
    return many.sample_weights(NoiseSource([0])), scores.phi.detach().softmax(-1)


@rates
def test_expectation_is_softmax(p):
    samples, mean = draw(p)
    torch.testing.assert_close(make_posterior(p).mean_weights(), mean)
    standard_error = mean * (p / (1 - p) / len(samples)) ** 0.5
    assert ((samples.mean(0) - mean).abs() < 5 * standard_error).all()


@rates
def test_drop_rate(p):
    samples, mean = draw(p)
    dropped = int((samples == 0).sum())
    assert stats.binomtest(dropped, samples.numel(), p).pvalue > 1e-3
    kept = samples != 0
    torch.testing.assert_close(samples[kept], (mean / (1 - p)).expand_as(samples)[kept])


@rates
def test_relative_std_is_that_of_the_samples(p):
    samples, mean = draw(p)
    stated = make_posterior(p).relative_std()
    assert torch.equal(stated, stated[:1, :1, :1, :1].expand_as(stated))
    measured = (samples / mean).flatten().std().item()
    assert measured == pytest.approx(stated.flatten()[0].item(), rel=0.01)


def test_nothing_is_dropped_at_rate_zero():
    posterior = make_posterior(0.0)
    assert torch.equal(posterior.sample_weights(NoiseSource()), posterior.mean_weights())
    assert not posterior.relative_std().any()


def test_no_prior_and_no_parameters():
    assert make_posterior(0.1).kl() is None
    assert not list(make_method(McDropoutConfig()).parameters())


def test_masked_keys_stay_at_zero():
    mask = padding(2, 4, keys=5)
    scores = make_scores(mask=mask)
    posterior = posterior_of(make_method(McDropoutConfig(p=0.5)), scores)
    for value in (posterior.sample_weights(NoiseSource()), posterior.relative_std()):
        assert not value[~mask.expand_as(value)].any()


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0, float("nan")])
def test_impossible_rates_are_refused(p):
    with pytest.raises(ConfigError, match=rf"p={p}.*from 0 to below 1"):
        McDropoutConfig(p=p)
