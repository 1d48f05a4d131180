"""Belief networks against the paper's formulas, evaluated directly in float64."""

import dataclasses

import numpy as np
import pytest
import torch
from attention_cases import (
    LINEAR,
    array,
    causal,
    divergence_integral,
    gradients,
    make_method,
    make_scores,
    padding,
    posterior_of,
    readings,
    repeated,
    softmax,
    softplus,
)
from scipy import integrate, special, stats

from babn import BeliefConfig
from babn.attention.inputs import Scores
from babn.attention.method import ChainShape
from babn.attention.noise_source import NoiseSource
from babn.errors import ConfigError, KeyLengthError

axes = pytest.mark.parametrize("upward", ["keys", "heads"])
parameterizations = pytest.mark.parametrize("scores", ["normalized", "raw"])
consistent = pytest.mark.parametrize("noise", ["exact", "truncated"])
SMALL = BeliefConfig.pairs(rho=1.5, sigma=0.2, max_length=6)


def moment(k, noise):
    """E[(-log(1 - u))^(1/k)] for u uniform on (0, 1) or on (0.1, 0.9)."""
    if noise != "truncated":
        return special.gamma(1 + 1 / k)
    return integrate.quad(lambda u: (-np.log(1 - u)) ** (1 / k), 0.1, 0.9)[0] / 0.8


def apply(linear, h):
    return LINEAR[linear.axis](array(linear.weight), array(linear.bias), h)


def papers_posterior(method, first, phi, layer, layers=3):
    """k and lambda of a layer (from 1), by the paper's equations."""
    config, nets = method.config, method.posterior_nets
    h = softmax(array(first))
    for upper in range(layers, layer - 1, -1):
        h = softplus(apply(nets[upper - 1].upward_map, h))
    phi = np.log(softmax(array(phi))) if config.scores == "normalized" else array(phi)
    net = nets[layer - 1]
    k = config.rho * softplus(apply(net.shape_map, h)) + np.exp(phi)
    rescaled = np.exp(phi) / np.vectorize(moment)(k, config.noise)
    return k, config.sigma * softplus(apply(net.scale_map, h)) + rescaled


@pytest.mark.parametrize("noise", ["exact", "truncated", "truncated-paper"])
@parameterizations
@axes
def test_posterior_is_the_papers(upward, scores, noise):
    config = dataclasses.replace(SMALL, upward=upward, scores=scores, noise=noise)
    method = make_method(config, sets=(0, 1, 2))
    first, later = make_scores(keys=3, queries=2, seed=1), make_scores(keys=3, queries=2, seed=2)
    upward = method.upward(first)
    for layer, call in ((1, first), (2, later), (3, later)):
        q = method(layer - 1, call, upward).variables
        k, lam = papers_posterior(method, first.phi, call.phi, layer)
        np.testing.assert_allclose(array(q.k), k, rtol=1e-12)
        np.testing.assert_allclose(array(q.log_lam.exp()), lam, rtol=2e-7)
        mean = lam * np.vectorize(moment)(k, noise)
        np.testing.assert_allclose(array(q.log_mean.exp()), mean, rtol=2e-7)


@consistent
@parameterizations
@axes
def test_mean_is_softmax_when_sigma_is_zero(upward, scores, noise):
    config = dataclasses.replace(SMALL, sigma=0.0, upward=upward, scores=scores, noise=noise)
    call = make_scores(dtype=torch.float32, mask=padding(5, 3, keys=5))
    mean = posterior_of(make_method(config, dtype=torch.float32), call).mean_weights()
    expected = call.phi.masked_fill(~call.mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-7)


@consistent
@axes
def test_average_of_samples_is_the_mean(upward, noise):
    config = dataclasses.replace(SMALL, upward=upward, noise=noise)
    call = repeated(make_scores(batch=1, keys=3, queries=1), 50_000)
    q = posterior_of(make_method(config), call, step=1).variables
    relative = (q.log_sample(torch.Generator().manual_seed(0)) - q.log_mean).detach().exp()
    standard_error = relative.std(0) / len(relative) ** 0.5
    assert ((relative.mean(0) - 1).abs() < 5 * standard_error).all()


def test_average_of_samples_is_not_the_mean_of_the_papers_noise():
    config = dataclasses.replace(SMALL, rho=0.5, noise="truncated-paper")
    call = repeated(make_scores(batch=1, keys=3, queries=1), 50_000)
    q = posterior_of(make_method(config), call).variables
    relative = (q.log_sample(torch.Generator().manual_seed(0)) - q.log_mean).detach().exp()
    standard_error = relative.std(0) / len(relative) ** 0.5
    assert ((relative.mean(0) - 1).abs() > 20 * standard_error).all()


@pytest.mark.parametrize("noise", ["exact", "truncated", "truncated-paper"])
def test_samples_approach_softmax_as_rho_grows(noise):
    call, distances = make_scores(), []
    for rho in (1.0, 1e2, 1e4, 1e6):
        method = make_method(dataclasses.replace(SMALL, rho=rho, sigma=0.0, noise=noise))
        sample = posterior_of(method, call).sample_weights(NoiseSource([0]))
        distances.append((sample - call.phi.softmax(-1)).abs().max().item())
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 1e-2 and distances[-1] < 1e-4


def test_divergence_is_the_integral():
    method = make_method(dataclasses.replace(SMALL, beta=0.7, noise="truncated"))
    call = make_scores(batch=1, keys=3, queries=1)
    posterior = posterior_of(method, call)
    k, lam = papers_posterior(method, call.phi, call.phi, layer=1, layers=2)
    net = method.prior_nets[0]
    alpha = array(net.outer(net.inner(call.key).relu()).softmax(-2).transpose(-1, -2))
    pairs = np.stack([k, lam, alpha, array(posterior.kl())], -1).reshape(-1, 4)
    for shape, scale, a, value in pairs:
        q, p = stats.weibull_min(shape, scale=scale), stats.gamma(a, scale=1 / 0.7)
        assert value == pytest.approx(divergence_integral(q, p), rel=1e-5)


@axes
@pytest.mark.parametrize(
    ("rho", "sigma", "maps"),
    [
        (1.0, 0.1, {"shape_map", "scale_map", "upward_map"}),
        (1.0, 0.0, {"shape_map", "upward_map"}),
        (0.0, 0.1, {"scale_map", "upward_map"}),
        (0.0, 0.0, set()),
    ],
)
def test_every_parameter_is_used(upward, rho, sigma, maps):
    config = dataclasses.replace(SMALL, rho=rho, sigma=sigma, upward=upward, noise="exact")
    method, call = make_method(config), make_scores()
    names = {name.split(".")[2] for name, _ in method.posterior_nets.named_parameters("nets")}
    assert names == maps
    upward, total = method.upward(call), torch.zeros((), dtype=torch.float64)
    for step in (0, 1):
        posterior = method(step, call, upward)
        sample = posterior.sample_weights(NoiseSource([0]))
        total = total + sample.square().sum() + posterior.kl().sum()
    for name, gradient in gradients(total, method).items():
        assert gradient is not None and torch.isfinite(gradient).all(), name
        # A constant on all numbers cancels in the prior's softmax.
        assert gradient.any() or "outer.bias" in name, name


@consistent
@parameterizations
def test_without_an_upward_path_values_and_gradients_are_finite(scores, noise):
    config = BeliefConfig.pairs(rho=0.0, sigma=0.0, scores=scores, noise=noise)
    method = make_method(config, sets=(0,), dtype=torch.float32)
    call = make_scores(keys=200, dtype=torch.float32)
    found = readings(posterior_of(method, call))
    total = found["sample"].square().sum() + found["kl"].mean()
    assert torch.isfinite(total)
    for gradient in torch.autograd.grad(total, [call.phi, call.key, *method.parameters()]):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("noise", ["exact", "truncated", "truncated-paper"])
def test_divergences_stay_small_where_noise_leaves_nothing(noise):
    config = BeliefConfig.pairs(rho=0.0, noise=noise, max_length=200)
    call = make_scores(keys=200, dtype=torch.float32)
    found = readings(posterior_of(make_method(config, dtype=torch.float32), call))
    assert 0 < found["kl"].mean() < 1e3


@axes
def test_later_keys_change_nothing_in_earlier_rows(upward):
    method = make_method(dataclasses.replace(SMALL, upward=upward))
    call = make_scores(queries=5, mask=causal(5))
    phi, key = call.phi.detach().clone(), call.key.detach().clone()
    phi[..., 3:], key[..., 3:, :] = 7.0, -2.0
    found, changed = (
        readings(posterior_of(method, s, step=1)) for s in (call, Scores(phi, call.mask, key))
    )
    for name, value in found.items():
        assert torch.equal(value[:, :, :3], changed[name][:, :, :3]), name
        assert not torch.equal(value[:, :, 3:], changed[name][:, :, 3:]), name


@axes
def test_a_prefix_alone_is_the_prefix_of_the_whole(upward):
    method = make_method(dataclasses.replace(SMALL, upward=upward))
    call = make_scores(queries=5, mask=causal(5))
    prefix = Scores(call.phi[..., :3, :3], causal(3), call.key[..., :3, :])
    whole, short = (readings(posterior_of(method, s, step=1)) for s in (call, prefix))
    for name in ("mean", "relative_std", "kl"):
        torch.testing.assert_close(whole[name][..., :3, :3], short[name])


@axes
def test_one_query_at_a_time_is_the_same_as_all_at_once(upward):
    method = make_method(dataclasses.replace(SMALL, upward=upward))
    call = make_scores(queries=5, mask=causal(5))
    whole = readings(posterior_of(method, call))
    for q in range(5):
        cached = Scores(call.phi[..., q : q + 1, : q + 1], None, call.key[..., : q + 1, :])
        last = readings(posterior_of(method, cached))
        for name in ("mean", "relative_std", "kl"):
            torch.testing.assert_close(last[name][..., 0, :], whole[name][..., q, : q + 1])


@pytest.mark.parametrize("noise", ["exact", pytest.param("truncated", marks=pytest.mark.thorough)])
@axes
def test_thousands_of_keys_stay_finite(upward, noise):
    config = BeliefConfig.pairs(upward=upward, max_length=4096, noise=noise)
    torch.manual_seed(0)
    method = config.build(ChainShape(1, 3, (0,)))
    phi = 5 * torch.randn(1, 1, 2, 4096)
    call = Scores(phi.requires_grad_(), None, torch.randn(1, 1, 4096, 3, requires_grad=True))
    found = readings(posterior_of(method, call))
    assert all(torch.isfinite(x).all() for x in found.values())
    torch.testing.assert_close(found["sample"].sum(-1), torch.ones(1, 1, 2))
    total = found["sample"].square().sum() + found["kl"].mean()
    for gradient in torch.autograd.grad(total, [call.phi, call.key, *method.parameters()]):
        assert torch.isfinite(gradient).all()


@consistent
@parameterizations
@axes
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_extreme_scores_stay_finite(upward, scores, noise, size):
    config = dataclasses.replace(SMALL, upward=upward, scores=scores, noise=noise)
    method, random = make_method(config, dtype=torch.float32), make_scores(dtype=torch.float32)
    phi = (size * random.phi.detach().sign()).requires_grad_()
    found = readings(posterior_of(method, Scores(phi, None, random.key)))
    for name, value in found.items():
        assert torch.isfinite(value).all(), name
        (gradient,) = torch.autograd.grad(value.flatten()[0], phi, retain_graph=True)
        assert torch.isfinite(gradient).all(), name


def test_more_keys_than_max_length_are_refused():
    method = make_method(SMALL)
    assert SMALL.max_keys == 6
    posterior_of(method, make_scores(keys=6))
    with pytest.raises(KeyLengthError, match=r"7 keys.*max_length=6"):
        posterior_of(method, make_scores(keys=7))


@pytest.mark.parametrize("config", [{"upward": "heads"}, {"rho": 0.0, "sigma": 0.0}])
def test_length_is_free_without_maps_over_keys(config):
    config = dataclasses.replace(SMALL, **config)
    assert config.max_keys is None
    assert posterior_of(make_method(config), make_scores(keys=9)).mean_weights().shape[-1] == 9


def test_shared_steps_share_their_parameters_but_not_their_states():
    method, call = make_method(SMALL, sets=(0, 0)), make_scores()
    assert len(method.posterior_nets) == len(method.prior_nets) == 1
    upward = method.upward(call)
    first, second = (method(step, call, upward).variables.k for step in (0, 1))
    assert not torch.allclose(first, second)


def test_paper_preset():
    config = BeliefConfig.paper()
    assert (config.scores, config.noise, config.kl_reduction) == ("raw", "truncated-paper", "sum")
    assert (config.rho, config.sigma, config.beta, config.upward) == (1.5, 1e-6, 1.0, "keys")
    assert config.kl_weight == 1.0


def test_released_preset():
    config = BeliefConfig.released_settings()
    assert (config.scores, config.noise) == ("normalized", "truncated-paper")
    assert config.kl_reduction == "mean" and config.kl_weight == 1.0
    assert config.beta == config.sigma == 1e-6 and config.rho == 1.5


def test_defaults_are_the_designs():
    config = BeliefConfig()
    assert (config.noise_over, config.noise) == ("keys", "exact")
    assert (config.rho, config.beta, config.sigma, config.kl_weight) == (2.0, 1.0, 0.0, 0.01)
    assert config.kl_reduction == "mean" and not config.attention_dropout
    assert config.max_keys is None and config.biases_keys and not config.has_upward_path


def test_defaults_of_pairs():
    config = BeliefConfig.pairs()
    assert config.noise_over == "pairs"
    assert (config.scores, config.upward, config.noise) == ("normalized", "keys", "truncated")
    assert (config.rho, config.beta, config.sigma, config.kl_weight) == (12.0, 1.0, 1e-6, 0.003)
    assert config.kl_reduction == "mean" and not config.attention_dropout
    assert config.max_keys == 512 and config.has_upward_path and not config.biases_keys


def test_files_with_the_neutral_values_of_removed_settings_are_read():
    config = BeliefConfig.pairs(max_length=64)
    saved = {**config.to_dict(), "upward_rank": 0, "upward_share": 1, "share": "auto"}
    assert BeliefConfig.from_dict(saved) == config
    for name, value in (("upward_rank", 16), ("upward_share", 2), ("share", "all")):
        with pytest.raises(ConfigError, match=rf"{name}={value!r} is a setting of babn 0.1"):
            BeliefConfig.from_dict({**saved, name: value})
