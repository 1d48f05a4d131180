"""Noise that follows from a row's seed and the place alone."""

import pytest
import scipy.stats
import torch

import babn
from babn.attention.inputs import Scores
from babn.attention.method import ChainShape
from babn.attention.noise_source import NoiseSource
from babn.distributions.noise import Family, NoiseName, noise_for
from babn_paper.models.translate import RowNoiseSource


def test_neighbours_and_padding_change_nothing() -> None:
    like = torch.empty(3, 2, 4, 5)
    whole = RowNoiseSource([7, 8, 9])
    first, second = whole.uniform(like), whole.uniform(like)
    assert not torch.equal(first, second)
    alone = RowNoiseSource([8])
    assert torch.equal(alone.uniform(torch.empty(1, 2, 6, 9))[..., :4, :5], first[1:2])
    assert torch.equal(alone.uniform(torch.empty(1, 2, 4, 5)), second[1:2])
    assert len({float(x) for x in first.flatten()}) == first.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_uniform_and_independent(dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov's test, and correlations along every axis within 5 standard errors."""
    found = RowNoiseSource(range(20)).uniform(torch.empty(20, 1, 50, 60, dtype=dtype))
    assert found.min() > 0 and found.max() < 1
    assert scipy.stats.kstest(found.flatten().double().numpy(), "uniform").pvalue > 1e-3
    centred = found.double() - 0.5
    for axis in (0, 2, 3):
        pairs = centred * centred.roll(1, axis)
        assert abs(float(pairs.mean()) * 12) < 5 / found.numel() ** 0.5
    again = RowNoiseSource(range(20))
    again.uniform(found)
    other = again.uniform(found).double() - 0.5
    assert abs(float((centred * other).mean()) * 12) < 5 / found.numel() ** 0.5


@pytest.mark.parametrize("family", ["weibull", "lognormal"])
@pytest.mark.parametrize("name", ["exact", "truncated", "truncated-paper"])
def test_noise_has_the_distribution_of_its_samples(family: Family, name: NoiseName) -> None:
    noise, like = noise_for(family, name), torch.empty(40, 1, 20, 20, dtype=torch.float64)
    rows = RowNoiseSource(range(40)).noise(noise, like).flatten()
    drawn = NoiseSource([3]).noise(noise, like).flatten()
    assert scipy.stats.ks_2samp(rows.numpy(), drawn.numpy()).pvalue > 1e-3


def test_dropped_weights_are_drawn_by_rows() -> None:
    method = babn.McDropoutConfig(p=0.5).build(ChainShape(1, 4, (0,)))
    phi, key = torch.randn(2, 1, 6, 5), torch.randn(2, 1, 5, 4)
    both = method(0, Scores(phi, None, key), None).sample_weights(RowNoiseSource([4, 5]))
    alone = method(0, Scores(phi[1:], None, key[1:]), None).sample_weights(RowNoiseSource([5]))
    torch.testing.assert_close(both[1:], alone)
    assert 0 < (both == 0).double().mean() < 1
