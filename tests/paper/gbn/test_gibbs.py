"""The sampler passes Geweke's test, and wrong ones do not."""

import math
from functools import partial

import pytest
import torch
from geweke import z_scores
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


@pytest.mark.slow
def test_geweke_with_learned_weights():
    network = GammaBeliefNetwork(tensor([0.9, 1.4]), (columns(3, 2, 0), columns(3, 3, 1)), 0.5)
    scores = z_scores(
        network, partial(sweep, concentration=0.7), 400, 400, observations=3, concentration=0.7
    )
    assert max(map(abs, scores.values())) < LIMIT, scores


def with_data_rates(state: State, counts, generator) -> State:
    """Takes the tables of upper layers for counts that came straight from the data."""
    network = state.network
    received = draw_latent_counts(state, counts, generator).received
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


def test_counts_are_kept_by_splits_and_shrink_upwards():
    network = two_layers()
    log_units, counts = network.draw(50, torch.Generator().manual_seed(0))
    latent = draw_latent_counts(State(network, log_units), counts, torch.Generator().manual_seed(1))
    torch.testing.assert_close(latent.splits[1].sum(-1), counts)
    torch.testing.assert_close(latent.received[1].sum(-1), counts.sum(-1))
    assert bool((latent.received[0].sum(-1) <= latent.received[1].sum(-1)).all())


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
