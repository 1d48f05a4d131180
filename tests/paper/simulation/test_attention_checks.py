"""babn's attention layer against the exact posterior of the model that it defines."""

import pytest
import torch
from scipy import stats

import babn
from babn.distributions import Gamma, weibull_gamma
from babn.errors import ConfigError
from babn_paper.simulation.attention_model import AttentionModel
from babn_paper.simulation.attention_posteriors import (
    BeliefPosterior,
    FreePosterior,
    bound_terms,
    draw_attention,
    exact_attention,
    gradient_variance,
    train,
)
from babn_paper.simulation.draws import coverage

pytestmark = pytest.mark.thorough

CONFIG = babn.BeliefConfig.pairs(
    rho=1.0, sigma=1.0, scores="raw", max_length=2, noise="exact", kl_reduction="sum"
)


@pytest.fixture
def belief() -> BeliefPosterior:
    torch.manual_seed(0)
    values = torch.tensor([[1.0], [-1.0]])
    return BeliefPosterior(CONFIG, torch.randn(2, 3), values, deviation=0.4)


@pytest.fixture
def seen(belief: BeliefPosterior) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return belief.model.observe(belief.model.draw_weights(60, generator), generator)


def test_the_model_has_the_layers_prior(belief, seen):
    q = belief.variables(seen)
    _, info = belief.attention(
        belief.query(seen)[:, None, None],
        belief.keys.expand(60, 1, 2, 3),
        belief.values.expand(60, 1, 2, 1),
    )
    divergence = weibull_gamma(q, Gamma(belief.model.log_alpha))
    torch.testing.assert_close(info.kl, divergence.sum(-1).mean())


def test_both_kl_estimate_the_same_bound(belief, seen):
    torch.manual_seed(2)
    _, exact = bound_terms(belief, seen[:4], 1)
    _, drawn = bound_terms(belief, seen[:4], 40_000, analytic=False)
    error = drawn.std(0) / drawn.shape[0] ** 0.5
    assert bool(((drawn.mean(0) - exact).abs() < 5 * error).all())


def test_training_closes_most_of_the_gap_and_never_passes_the_evidence(belief, seen):
    def gap():
        torch.manual_seed(3)
        with torch.no_grad():
            fit, divergence = bound_terms(belief, seen, 500)
        return (belief.model.log_evidence(seen) - (fit - divergence).mean(0)).mean().item()

    before = gap()
    train(belief, None, steps=100, batch_size=64)
    assert 0 < gap() < 0.5 * before


def test_free_parameters_of_a_prior_that_is_weibull_reach_the_prior():
    # With observations that say nothing and shapes of one, the posterior is exponential.
    model = AttentionModel(torch.zeros(2), torch.zeros(2, 1), 1.0)
    free = FreePosterior(model, 3)
    free.log_k.data.fill_(1.0)
    train(free, torch.zeros(3, 1), steps=400, draws=1, rate=0.05)
    q = free.variables(torch.zeros(3, 1))
    torch.testing.assert_close(q.k, torch.ones(3, 2), atol=0.02, rtol=0)
    torch.testing.assert_close(q.log_lam, torch.zeros(3, 2), atol=0.02, rtol=0)


def test_exact_attention_is_the_posterior_of_a_beta_prior():
    # One key is worth nothing, so observations say how much the other one weighs.
    model = AttentionModel(torch.tensor([2.0, 1.5]).log(), torch.zeros(2, 1), 0.2)
    draws = exact_attention(
        model, torch.zeros(1, 1), 2000, generator=torch.Generator().manual_seed(4)
    )
    assert stats.kstest(draws[:, 0, 0].numpy(), stats.beta(2, 1.5).cdf).pvalue > 1e-3


def test_exact_attention_covers_as_it_says(belief):
    generator = torch.Generator().manual_seed(5)
    truth = belief.model.draw_weights(300, generator)
    seen = belief.model.observe(truth, generator)
    draws = exact_attention(belief.model, seen, 1000, 5000, generator)
    for level, (share, error) in coverage(draws, truth).items():
        assert abs(share - float(level)) < 4 * error + 0.01


def test_gradients_have_the_same_mean_and_the_analytic_ones_less_variance(belief, seen):
    torch.manual_seed(6)
    mean, variance = gradient_variance(belief, seen[:16], True, 100)
    drawn_mean, drawn_variance = gradient_variance(belief, seen[:16], False, 100)
    assert drawn_mean == pytest.approx(mean, rel=0.3, abs=3 * drawn_variance / 100)
    assert variance < drawn_variance


def test_draws_are_weights(belief, seen):
    weights = draw_attention(belief, seen, 7)
    assert weights.shape == (7, 60, 2)
    torch.testing.assert_close(weights.sum(-1), torch.ones(7, 60))


def test_bad_arguments_are_refused(belief, seen):
    for arguments, message in (
        ({"steps": 0}, "steps=0"),
        ({"rate": 0.0}, r"rate=0\.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(belief, None, **arguments)
