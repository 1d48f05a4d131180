"""Intervals against known distributions."""

import pytest
import torch
from scipy import stats

from babn_paper.simulation.draws import LEVELS, central_interval, coverage

pytestmark = pytest.mark.thorough


def test_intervals_are_those_of_the_distribution():
    draws = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    for level in LEVELS:
        low, high = central_interval(draws, level)
        expected = stats.norm.interval(level)
        assert low.tolist() == pytest.approx([expected[0]] * 2, abs=0.02)
        assert high.tolist() == pytest.approx([expected[1]] * 2, abs=0.02)


def test_right_posteriors_cover_as_often_as_they_say_and_narrow_ones_less():
    generator = torch.Generator().manual_seed(1)
    centre = torch.randn(2000, 3, generator=generator)
    truth = centre + torch.randn(2000, 3, generator=generator)
    draws = centre + torch.randn(500, 2000, 3, generator=generator)
    for level, (share, error) in coverage(draws, truth).items():
        assert abs(share - float(level)) < 4 * error + 0.005
    narrow = coverage(centre + (draws - centre) / 2, truth)
    assert narrow["0.9"][0] == pytest.approx(2 * stats.norm.cdf(1.645 / 2) - 1, abs=0.02)
