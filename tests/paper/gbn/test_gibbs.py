"""The sampler passes Geweke's test, and wrong ones do not."""

import math

import pytest
import torch
from geweke import effective_sample_size, z_scores
from network_cases import columns, scalar, tensor, two_layers

from babn_paper.gbn import GammaBeliefNetwork, gibbs
from babn_paper.gbn.gibbs import State, draw_latent_counts, draw_units, exposures, sweep

pytestmark = pytest.mark.thorough

THREE = GammaBeliefNetwork(
    tensor([0.9, 1.4]), (columns(3, 2, 0), 2 * columns(2, 3, 1), 3 * columns(2, 2, 2)), rate=0.9
)
LIMIT = 4.0
"""Chance alone passes it about once in a thousand tests of some twenty correlated functions."""


@pytest.mark.parametrize("network", [scalar(1.1), two_layers(), THREE], ids=["1", "2", "3"])
def test_geweke(network):
    scores = z_scores(network, sweep)
    assert max(map(abs, scores.values())) < LIMIT, scores


def with_data_rates(state: State, counts, generator) -> State:
    """Takes the tables of upper layers for counts that came straight from the data."""
    network = state.network
    received = draw_latent_counts(state, counts, generator)
    found = []
    for layer, m in enumerate(received):
        shape = torch.logaddexp(network.log_shape(layer, found[-1] if found else None), m.log())
        rate = network.rate + network.weights[layer].sum(-2)
        found.append(gibbs.Gamma(shape, rate).log_sample(generator))
    return State(network, found)


def with_one_table(state: State, counts, generator) -> State:
    """Seats all customers at one table."""
    return _with_tables(state, counts, generator, lambda m, shape: (m > 0).double())


def with_tables_one_short(state: State, counts, generator) -> State:
    """Forgets the last customer of every restaurant: an error of one in a loop's end."""
    draw = gibbs.draw_tables
    return _with_tables(
        state, counts, generator, lambda m, shape: draw((m - 1).clamp(min=0), shape, generator)
    )


def _with_tables(state: State, counts, generator, tables) -> State:
    network = state.network
    received, arriving = [], counts
    for layer in reversed(range(network.layers)):
        terms = gibbs.log_terms(network.weights[layer], state.log_units[layer])
        received.insert(0, gibbs.split_counts(arriving, terms, generator).sum(-2))
        if layer:
            shape = network.log_shape(layer, state.log_units[layer - 1])
            arriving = tables(received[0], shape)
    return State(network, draw_units(network, received, generator))


@pytest.mark.parametrize("wrong", [with_data_rates, with_one_table, with_tables_one_short])
def test_geweke_finds_wrong_samplers(wrong):
    scores = z_scores(two_layers(), wrong)
    assert max(map(abs, scores.values())) > 2 * LIMIT, scores


def test_exposures_by_hand():
    # e2 = 2 * 1; e1 = 3 * log(1 + 2 / 0.5)
    network = scalar(3.0, 2.0, rate=0.5)
    upper, lower = (e.item() for e in exposures(network))
    assert lower == pytest.approx(2)
    assert upper == pytest.approx(3 * math.log(5))


def test_counts_are_kept_and_shrink_upwards():
    network = two_layers()
    log_units, counts = network.draw(50, torch.Generator().manual_seed(0))
    received = draw_latent_counts(
        State(network, log_units), counts, torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(received[1].sum(-1), counts.sum(-1))
    assert bool((received[0].sum(-1) <= received[1].sum(-1)).all())


def test_layers_that_are_almost_zero_stay_finite():
    network = GammaBeliefNetwork(
        torch.full((2,), 1e-8, dtype=torch.float64), (columns(2, 2, 0), columns(2, 2, 1))
    )
    counts = tensor([[0.0, 0.0], [40.0, 2.0]])
    state = State(network, network.draw(2, torch.Generator().manual_seed(0))[0])
    for seed in range(20):
        state = sweep(state, counts, torch.Generator().manual_seed(seed))
        assert all(bool(units.isfinite().all()) for units in state.log_units)
    assert state.log_units[-1][1].exp().sum() > 1


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
