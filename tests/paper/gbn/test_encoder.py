"""The Weibull inference network against exact evidence and exact posteriors."""

import numpy as np
import pytest
import torch
from network_cases import generator, scalar, tensor, two_layers
from scipy import stats

from babn.errors import ConfigError
from babn_paper.gbn import WeibullNetwork, agreement, fit, sample_posterior
from babn_paper.gbn.comparison import binned_kl, importance_bound


def encoder(network, paths="both", states=8):
    torch.manual_seed(0)
    return WeibullNetwork(network, states, paths)


@pytest.mark.parametrize("paths", ["both", "upward", "downward"])
def test_gradients_reach_every_parameter(paths):
    network = two_layers()
    _, counts = network.draw(20, generator(0))
    found = encoder(network, paths)
    found.elbo(counts, 3).sum().backward()
    for name, parameter in found.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool((parameter.grad != 0).any()), name


def test_without_the_upward_path_the_data_have_no_way_in():
    network = two_layers()
    found = encoder(network, "downward")
    torch.manual_seed(1)
    one = next(found(tensor([[0.0, 1.0]])))
    other = next(found(tensor([[50.0, 9.0]])))
    assert torch.equal(one.posterior.k, other.posterior.k)
    with_data = encoder(network, "both")
    one, other = (next(with_data(tensor([[x, 1.0]]))) for x in (0.0, 50.0))
    assert not torch.equal(one.posterior.k, other.posterior.k)


def test_without_the_downward_path_layers_do_not_see_each_other():
    network, counts = two_layers(), tensor([[3.0, 1.0]])
    for paths, same in (("upward", True), ("both", False)):
        found = encoder(network, paths)
        first, second = (list(found(counts))[1].posterior.k for _ in range(2))
        assert torch.equal(first, second) == same


@pytest.mark.parametrize("network", [scalar(1.6), scalar(0.9, 1.4)], ids=["1", "2"])
def test_bounds_lie_below_the_evidence(network):
    counts = tensor([[0.0], [2.0], [9.0]])
    # The evidence as the mean likelihood of draws from the prior.
    log_units, _ = network.draw(400_000, generator(2))
    rate = network.log_rate_of_counts(log_units[-1]).exp().numpy()
    evidence = np.log([stats.poisson(rate).pmf(c).mean() for c in counts[:, 0].tolist()])
    # Wide enough for importance weights of finite variance.
    found = encoder(network, "downward")
    torch.manual_seed(3)
    with torch.no_grad():
        bound = found.elbo(counts, 4000)
    importance = importance_bound(found, counts, 20_000)
    assert bool((bound < torch.from_numpy(evidence) + 0.02).all())
    np.testing.assert_allclose(importance, evidence, atol=0.06)


@pytest.mark.slow
def test_training_recovers_the_conjugate_posterior():
    network = scalar(1.6, shape=2.0, rate=0.5)
    _, counts = network.draw(2000, generator(4))
    found = encoder(network)
    state = torch.get_rng_state()
    history = fit(found, counts, 600, 128)
    assert torch.equal(state, torch.get_rng_state())
    assert np.mean(history[-20:]) > np.mean(history[:20])
    with torch.no_grad():
        layer = next(found(tensor([[3.0], [8.0]])))
        bound = found.elbo(counts, 50).mean().item()
    exact = (2.0 + tensor([3.0, 8.0])) / (0.5 + 1.6)
    torch.testing.assert_close(layer.posterior.log_mean.exp()[0, :, 0], exact, rtol=0.15, atol=0)
    evidence = stats.nbinom(2.0, 0.5 / 2.1).logpmf(counts.numpy()).mean()
    assert 0 < evidence - bound < 0.1


def test_draws_have_one_axis_for_themselves():
    network = two_layers()
    _, counts = network.draw(5, generator(5))
    shapes = [tuple(units.shape) for units in encoder(network).sample(counts, 7)]
    assert shapes == [(7, 5, 2), (7, 5, 3)]


def test_bad_arguments_are_refused():
    network = two_layers()
    with pytest.raises(ConfigError, match="states=0"):
        WeibullNetwork(network, 0)
    with pytest.raises(ConfigError, match="steps=0"):
        fit(encoder(network), torch.ones(1, 2, dtype=torch.float64), steps=0)


def test_an_unknown_path_is_refused(as_installed):
    with pytest.raises(ConfigError, match="paths='sideways'"):
        WeibullNetwork(two_layers(), paths="sideways")


def test_binned_kl_of_known_distributions():
    draws = torch.randn(100_000, 2, generator=generator(6), dtype=torch.float64)
    same = torch.randn(100_000, 2, generator=generator(7), dtype=torch.float64)
    assert binned_kl(draws, same).max() < 1e-3
    edges = stats.norm.ppf(np.arange(21) / 20)
    expected = -np.log(20 * np.diff(stats.norm(0.5).cdf(edges))).mean()
    found = binned_kl(draws, same + 0.5)
    assert found.tolist() == pytest.approx([expected] * 2, abs=0.01)


@pytest.mark.thorough
def test_agreement_of_the_sampler_with_itself():
    network = two_layers()
    truth, counts = network.draw(60, generator(8))
    found = sample_posterior(network, counts, 250, 50, 8, generator=generator(9)).log_units
    for layer, units in enumerate(truth):
        one, other = found[layer].unflatten(1, (2, 4)).flatten(2, 2).unbind(1)
        result = agreement(one.flatten(0, 1), other.flatten(0, 1), units)
        assert result.kl < 0.03
        assert result.absolute_bias < 0.15
        assert result.spread == pytest.approx(1, abs=0.05)
        assert result.mass["0.9"] == pytest.approx(0.9, abs=0.03)
        share, error = result.coverage["0.9"]
        assert abs(share - 0.9) < 4 * error
