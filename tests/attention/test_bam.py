"""Bayesian attention modules: one noise level everywhere, KLs by integration."""

import math

import pytest
import torch
from attention_cases import (
    divergence_integral,
    make_method,
    make_scores,
    padding,
    posterior_of,
    repeated,
)
from scipy import stats

from babn import BamConfig
from babn.attention.inputs import Scores
from babn.attention.noise_source import NoiseSource

FAMILIES = ["weibull", "lognormal"]
families = pytest.mark.parametrize("family", FAMILIES)
consistent = pytest.mark.parametrize("noise", ["exact", "truncated"])


def reference(family, mean, config):
    """The posterior that scipy would use, with a given mean."""
    if family == "weibull":
        return stats.weibull_min(config.k, scale=mean / math.gamma(1 + 1 / config.k))
    return stats.lognorm(config.sigma, scale=mean / math.exp(config.sigma**2 / 2))


def prior(family, alpha, config):
    if family == "weibull":
        return stats.gamma(alpha, scale=1 / config.beta)
    return stats.lognorm(config.prior_sigma, scale=alpha)


@pytest.mark.parametrize(
    ("kind", "scores"),
    [
        ("contextual", "normalized"),
        ("constant", "raw"),
        pytest.param("contextual", "raw", marks=pytest.mark.thorough),
        pytest.param("constant", "normalized", marks=pytest.mark.thorough),
    ],
)
@families
def test_divergence_is_the_integral(family, kind, scores):
    config = BamConfig(
        family=family, k=3.0, sigma=0.4, prior=kind, alpha=1.7, beta=0.6, scores=scores
    )
    method, call = make_method(config), make_scores(keys=3, queries=1, batch=1)
    kl = posterior_of(method, call, step=1).kl()
    phi = call.phi.log_softmax(-1) if scores == "normalized" else call.phi
    alpha = torch.full_like(phi, 1.7)
    if kind == "contextual":
        inner, outer = method.prior_nets[1].inner, method.prior_nets[1].outer
        alpha = outer(inner(call.key).relu()).softmax(-2).transpose(-1, -2)
    pairs = torch.stack([phi.exp(), alpha, kl], -1).flatten(0, -2)
    for mean, a, value in pairs.tolist():
        q, p = reference(family, mean, config), prior(family, a, config)
        assert value == pytest.approx(divergence_integral(q, p), rel=1e-5, abs=1e-8)


@families
def test_relative_std_is_the_same_everywhere_and_scipys(family):
    config = BamConfig(family=family, k=4.0, sigma=0.3)
    spread = posterior_of(make_method(config), make_scores()).relative_std()
    q = reference(family, 1.0, config)
    assert spread.shape == (2, 2, 4, 5)
    torch.testing.assert_close(spread, torch.full_like(spread, q.std() / q.mean()))


@consistent
@families
@pytest.mark.parametrize("scores", ["normalized", "raw"])
def test_mean_is_softmax(family, noise, scores):
    config = BamConfig(family=family, noise=noise, scores=scores)
    call = make_scores(dtype=torch.float32)
    mean = posterior_of(make_method(config, dtype=torch.float32), call).mean_weights()
    torch.testing.assert_close(mean, call.phi.softmax(-1))


@consistent
@families
def test_average_of_samples_is_the_mean(family, noise):
    config = BamConfig(family=family, noise=noise, k=1.5, sigma=0.7)
    call = make_scores(batch=1, keys=3, queries=1)
    q = posterior_of(make_method(config), repeated(call, 50_000)).variables
    relative = (q.log_sample(torch.Generator().manual_seed(0)) - q.log_mean).exp()
    standard_error = relative.std(0) / len(relative) ** 0.5
    assert ((relative.mean(0) - 1).abs() < 5 * standard_error).all()


@families
def test_samples_are_softmax_where_there_is_no_noise_to_speak_of(family):
    config = BamConfig(family=family, k=1e7, sigma=1e-7)
    posterior = posterior_of(make_method(config), make_scores())
    sample = posterior.sample_weights(NoiseSource([0]))
    torch.testing.assert_close(sample, posterior.mean_weights(), rtol=1e-5, atol=1e-5)
    assert not torch.equal(sample, posterior.mean_weights())


@families
def test_a_constant_prior_has_no_parameters(family):
    method = make_method(BamConfig(family=family, prior="constant"))
    assert not list(method.parameters())
    assert posterior_of(method, make_scores()).kl().shape == (2, 2, 4, 5)


@families
def test_every_parameter_of_a_contextual_prior_gets_a_gradient(family):
    method = make_method(BamConfig(family=family))
    call = make_scores(mask=padding(5, 3, keys=5))
    total = sum(posterior_of(method, call, step).kl().sum() for step in (0, 1))
    total.backward()
    # A constant on all numbers cancels in the softmax, so the last bias gets only rounding.
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all() and (
            parameter.grad.any() or "outer.bias" in name
        )


def test_shared_steps_share_one_prior():
    assert len(make_method(BamConfig(), sets=(0, 0, 0)).prior_nets) == 1
    assert len(make_method(BamConfig(), sets=(0, 1, 0)).prior_nets) == 2


@pytest.mark.parametrize("scores", ["normalized", "raw"])
@families
def test_extreme_scores_stay_finite(family, scores):
    config = BamConfig(family=family, scores=scores)
    call = make_scores(dtype=torch.float32)
    phi = (1e4 * call.phi.detach().sign()).requires_grad_()
    posterior = posterior_of(make_method(config, dtype=torch.float32), Scores(phi, None, call.key))
    sample, kl = posterior.sample_weights(NoiseSource([0])), posterior.kl()
    for value in (sample, kl):
        assert torch.isfinite(value).all()
        (gradient,) = torch.autograd.grad(value[0, 0, 0, 0], phi, retain_graph=True)
        assert torch.isfinite(gradient).all()


@families
@pytest.mark.parametrize("kind", ["contextual", "constant"])
def test_a_step_copies_no_number_to_the_device(
    family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such copies cannot be captured in CUDA graphs.
    method, call = make_method(BamConfig(family=family, prior=kind)), make_scores()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a number was copied")

    monkeypatch.setattr(torch.Tensor, "new_tensor", refuse)
    monkeypatch.setattr(torch, "tensor", refuse)
    posterior = posterior_of(method, call)
    assert posterior.sample_weights(NoiseSource([0])).isfinite().all()
    assert posterior.kl().isfinite().all()
