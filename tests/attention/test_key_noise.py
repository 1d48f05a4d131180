"""One variable for each key: the paper's distributions shared by all queries."""

import numpy as np
import pytest
import torch
from attention_cases import HEADS, causal, make_rule, make_scores, posterior_of, repeated
from scipy import integrate, stats

from babn import BeliefConfig
from babn.attention.inputs import Inputs, Scores
from babn.attention.keys import KeyBeliefRule
from babn.attention.randomness import Randomness
from babn.attention.rule import ChainShape
from babn.errors import ConfigError

CONFIG = BeliefConfig(noise_over="keys", rho=1.3, sigma=0.0, noise="exact")


def test_the_mean_is_softmax_bit_for_bit() -> None:
    scores = make_scores()
    posterior = posterior_of(make_rule(CONFIG), scores)
    assert torch.equal(posterior.mean_weights(), scores.phi.softmax(-1))


def test_shapes_follow_the_formula() -> None:
    scores, rule = make_scores(), make_rule(CONFIG)
    rule.energies.copy_(torch.tensor([[2.0, 5.0], [1.0, 3.0]]))
    found = posterior_of(rule, scores, step=1).variables
    for head in range(HEADS):
        energy = scores.key[:, head].square().sum(-1)
        factor = 1.3 * rule.log_shapes[1][head].exp() / rule.energies[1, head]
        expected = (factor * energy).clamp(min=0.1)
        torch.testing.assert_close(1 / found.scale[:, head, 0], expected)


def test_variables_have_mean_one() -> None:
    posterior = posterior_of(make_rule(CONFIG), repeated(make_scores(batch=1), 200_000))
    mean = posterior.log_sample(Randomness([0])).exp().mean(0)
    spread = posterior.variables.relative_std[0]
    assert ((mean - 1).abs() < 4 * spread / 200_000**0.5 + 1e-3).all()


def test_all_queries_share_the_noise() -> None:
    scores = make_scores()
    weights = posterior_of(make_rule(CONFIG), scores).sample_weights(Randomness([0]))
    noise = weights.log() - scores.phi
    noise = noise - noise[..., :1]
    torch.testing.assert_close(noise, noise[:, :, :1].expand_as(noise))
    assert noise.std() > 0.1


def test_the_kl_is_that_of_the_densities() -> None:
    rule, scores = make_rule(CONFIG), make_scores(batch=1)
    posterior = posterior_of(rule, scores)
    alpha = (rule.prior_nets[0](scores.key)[0, 0].softmax(-1) * 5).tolist()
    kl = posterior.divergence()[0, 0, 0].tolist()
    shapes = posterior.variables.k[0, 0, 0].tolist()
    for key in range(5):
        k = shapes[key]
        q = stats.weibull_min(k, scale=1 / stats.weibull_min(k).mean())
        p = stats.gamma(alpha[key])

        def density(t: float, q=q, p=p) -> float:
            s = np.exp(t)
            return float(q.pdf(s) * s * (q.logpdf(s) - p.logpdf(s)))

        expected, _ = integrate.quad(density, -60 / k, 6, limit=400)
        assert kl[key] == pytest.approx(expected, rel=1e-5)


def test_the_kl_is_zero_where_posterior_and_prior_are_exponential() -> None:
    rule = KeyBeliefRule(BeliefConfig(), ChainShape(1, 4, (0,))).double()
    with torch.no_grad():
        for parameter in rule.prior_nets.parameters():
            parameter.zero_()
    key = torch.ones(1, 1, 6, 4, dtype=torch.float64)  # each with the energy of four dimensions
    scores = Scores(torch.randn(1, 1, 6, 6, dtype=torch.float64), None, key)
    torch.testing.assert_close(
        rule(0, scores, None).divergence(), torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    )


def test_later_keys_do_not_change_a_key() -> None:
    rule, scores = make_rule(CONFIG), make_scores(queries=5)
    short = Scores(scores.phi[..., :3, :3], causal(3), scores.key[:, :, :3])
    whole = posterior_of(rule, Scores(scores.phi, causal(5), scores.key))
    assert torch.equal(posterior_of(rule, short).variables.k, whole.variables.k[..., :3])


def test_random_initialisation_does_not_touch_the_shapes() -> None:
    scores, shape = make_scores(), ChainShape(HEADS, 3, (0,))
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        rule = CONFIG.build(shape).double()
        rule.observe([scores.key])
        found.append(rule(0, scores, None).variables.k)
    assert torch.equal(*found)


def test_typical_keys_have_shape_rho() -> None:
    rule, scores = CONFIG.build(ChainShape(HEADS, 3, (0, 0))).double(), make_scores()
    scores = Scores(scores.phi, None, 1 + scores.key.square())  # no shape below the floor
    rule.observe([scores.key, 2 * scores.key])  # two calls of one shared module
    k = rule(0, scores, None).variables.k
    torch.testing.assert_close(
        k.mean(dim=(0, 2, 3)) * 2.5, torch.full((2,), 1.3, dtype=torch.float64)
    )


def test_grouped_queries_read_the_keys_of_their_group() -> None:
    rule = CONFIG.build(ChainShape(4, 3, (0,))).double()
    scores = make_scores()
    grouped = Scores(scores.phi.repeat_interleave(2, 1), None, scores.key)
    rule.observe([scores.key])
    k = rule(0, grouped, None).variables.k
    assert torch.equal(k[:, 0], k[:, 1]) and torch.equal(k[:, 2], k[:, 3])
    assert rule(0, grouped, None).divergence().shape == (2, 4, 1, 5)


def test_gradients() -> None:
    rule = make_rule(CONFIG)

    def outputs(phi, key, log_shape):
        rule.log_shapes[0].data = log_shape.data
        scores = Scores(phi, None, key)
        posterior = rule(0, scores, None)
        return posterior.sample_weights(Randomness([3])), posterior.divergence()

    scores = make_scores(batch=1)
    assert torch.autograd.gradcheck(
        lambda phi, key: outputs(phi, key, rule.log_shapes[0]), (scores.phi, scores.key)
    )


@pytest.mark.parametrize("bias", [None, torch.randn(1, 1, 4, 5)], ids=["plain", "bias"])
@pytest.mark.parametrize("mask", [None, torch.tensor([True, True, True, False, True])])
def test_a_bias_on_keys_is_the_same_attention(bias, mask) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, HEADS, 4, 3), torch.randn(2, HEADS, 5, 3), torch.randn(2, HEADS, 5, 3)
    mask = None if mask is None else mask.expand(2, 1, 4, 5)
    inputs = Inputs(q, k, v, scale=0.7, mask=mask, bias=bias)
    rule = make_rule(CONFIG, dtype=torch.float32)
    by_scores = rule(0, inputs.scores(), None)
    without = rule(0, inputs.without_scores(), None)
    log_e = without.log_sample(Randomness([1]))
    biased = inputs.with_bias(log_e)
    from babn.attention.fused import softmax_attention

    expected = by_scores.sample_weights(Randomness([1])) @ v
    torch.testing.assert_close(softmax_attention(biased), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{"sigma": 1e-6}, {"sigma": 0.0, "rho": 0.0}])
def test_settings_that_have_no_meaning_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=r"sigma=|rho="):
        BeliefConfig(noise_over="keys", **settings)
