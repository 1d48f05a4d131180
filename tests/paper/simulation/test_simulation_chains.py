"""Effective sample sizes against processes whose autocorrelations are known."""

import pytest
import torch

from babn_paper.simulation.draws import effective_sample_size


def autoregressive(rho: float, steps: int, chains: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(steps, chains, generator=generator, dtype=torch.float64)
    found = [noise[0]]
    for each in noise[1:]:
        found.append(rho * found[-1] + (1 - rho**2) ** 0.5 * each)
    return torch.stack(found)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_autoregressive_chains(rho):
    draws = autoregressive(rho, 2000, 20)
    assert effective_sample_size(draws) == pytest.approx(40_000 * (1 - rho) / (1 + rho), rel=0.15)


def test_chains_that_disagree_count_little():
    draws = autoregressive(0.0, 1000, 4) + 5 * torch.arange(4)
    assert effective_sample_size(draws) < 20


def test_constant_draws():
    assert effective_sample_size(torch.ones(10, 2)) == 20
