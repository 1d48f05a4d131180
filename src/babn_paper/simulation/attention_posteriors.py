"""Approximate posteriors of the one-layer attention model, their training and their checks."""

from abc import ABC, abstractmethod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.belief import BeliefConfig
from babn.attention.posterior import NormalizedPosterior
from babn.distributions import Gamma, Weibull, weibull_gamma
from babn.standalone import BayesianAttention
from babn.validation import check_count
from babn_paper.maximise import maximise
from babn_paper.simulation.attention_model import AttentionModel


class AttentionPosterior(nn.Module, ABC):
    """Approximate posterior of the unnormalised weights of each observation."""

    @property
    @abstractmethod
    def model(self) -> AttentionModel:
        """The attention model."""

    @abstractmethod
    def variables(self, seen: Float[Tensor, "observation valuedim"]) -> Weibull:
        """Returns the distribution, of shape observation by key."""


class BeliefPosterior(AttentionPosterior):
    """babn's attention layer, with a query that an MLP computes from the observation.

    The keys are fixed. The layer's prior over them, frozen at its initial value, is the prior of
    the model.

    Args:
        config: Configuration of the layer.
        keys: One row for each key.
        values: One row for each key.
        deviation: Standard deviation of the observations.
        hidden: Width of the MLP.
    """

    def __init__(
        self,
        config: BeliefConfig,
        keys: Float[Tensor, "key dim"],
        values: Float[Tensor, "key valuedim"],
        deviation: float,
        hidden: int = 32,
    ) -> None:
        super().__init__()
        self.attention = BayesianAttention(1, keys.shape[-1], config).to(keys.dtype)
        self.keys = keys
        self.attention.rule.get_submodule("prior_nets").requires_grad_(False)
        self.query = nn.Sequential(
            nn.Linear(values.shape[-1], hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, keys.shape[-1]),
        ).to(keys.dtype)
        self.values, self.deviation = values, deviation

    @property
    def model(self) -> AttentionModel:
        """The attention model whose prior is the layer's."""
        net = self.attention.rule.get_submodule("prior_nets.0")
        log_alpha = torch.log_softmax(net(self.keys[None, None]).detach().flatten(), 0)
        beta = cast(BeliefConfig, self.attention.config).beta
        return AttentionModel(log_alpha, self.values, self.deviation, beta)

    def forward(self, seen: Float[Tensor, "observation valuedim"]) -> NormalizedPosterior:
        """Returns the layer's posterior for each observation."""
        query = self.query(seen)[:, None, None]
        key, value = (x.expand(len(seen), 1, *x.shape) for x in (self.keys, self.values))
        _, info = self.attention(query, key, value, sample=False)
        assert isinstance(info.posterior, NormalizedPosterior)
        return info.posterior

    def variables(self, seen: Float[Tensor, "observation valuedim"]) -> Weibull:
        """Returns Weibull distributions of the unnormalised weights."""
        found = cast(Weibull, self(seen).variables)
        k, log_lam = (x.flatten(0, 2) for x in (found.k, found.log_lam))
        return Weibull(k, log_lam, cast(BeliefConfig, self.attention.config).noise)


class FreePosterior(AttentionPosterior):
    """Free Weibull parameters for each observation: the best posterior of the family.

    Args:
        model: The attention model.
        observations: Number of observations, which must always be the same in the same order.
    """

    def __init__(self, model: AttentionModel, observations: int) -> None:
        super().__init__()
        self._model = model
        start = model.log_alpha.new_zeros(observations, len(model.log_alpha))
        self.log_k = nn.Parameter(start)
        self.log_lam = nn.Parameter(start + model.log_alpha)

    @property
    def model(self) -> AttentionModel:
        """The attention model."""
        return self._model

    def variables(self, seen: Float[Tensor, "observation valuedim"]) -> Weibull:
        """Returns the parameters, which do not depend on `seen`."""
        return Weibull(self.log_k.clamp(-6, 6).exp(), self.log_lam)


def bound_terms(
    posterior: AttentionPosterior,
    seen: Float[Tensor, "observation valuedim"],
    draws: int,
    analytic: bool = True,
) -> tuple[Float[Tensor, "draw observation"], Float[Tensor, "*draw observation"]]:
    """Returns the two terms of the evidence bound: expected log-likelihood, and KL from the prior.

    Args:
        posterior: The approximate posterior.
        seen: Observations.
        draws: Draws per observation.
        analytic: Whether the KL is computed exactly; otherwise it is estimated from the same draws.
    """
    check_count("draws", draws)
    model, q = posterior.model, posterior.variables(seen)
    log_s = q.log_sample_from(q.noise.sample(q.loc.detach().expand(draws, *q.loc.shape)))
    fit = model.log_likelihood(torch.softmax(log_s, -1), seen)
    prior = Gamma(model.log_alpha, model.beta)
    if analytic:
        return fit, weibull_gamma(q, prior).sum(-1)
    return fit, (q.log_prob(log_s) - prior.log_prob(log_s)).sum(-1)


@torch.no_grad()
def draw_attention(
    posterior: AttentionPosterior, seen: Float[Tensor, "observation valuedim"], draws: int
) -> Float[Tensor, "draw observation key"]:
    """Draws normalised weights from the approximate posterior."""
    q = posterior.variables(seen)
    noise = q.noise.sample(q.loc.expand(draws, *q.loc.shape))
    return torch.softmax(q.log_sample_from(noise), -1)


def train(
    posterior: AttentionPosterior,
    seen: Float[Tensor, "observation valuedim"] | None = None,
    steps: int = 2000,
    batch_size: int = 256,
    draws: int = 2,
    rate: float = 0.01,
    seed: int = 0,
) -> list[float]:
    """Maximises the evidence bound with Adam and a cosine schedule of the learning rate.

    Args:
        posterior: The posterior, trained in place.
        seen: Observations used in every step; by default new ones are simulated at every step.
        steps: Number of optimizer steps.
        batch_size: Simulated observations per step.
        draws: Draws per observation.
        rate: Initial learning rate.
        seed: Seed of data and noise; the global random state is restored.

    Returns:
        The mean bound at every step.
    """
    for name, value in {"batch_size": batch_size, "draws": draws}.items():
        check_count(name, value)
    model, count = posterior.model, batch_size if seen is None else len(seen)

    def bound() -> Tensor:
        batch = model.observe(model.draw_weights(batch_size)) if seen is None else seen
        fit, kl = bound_terms(posterior, batch, draws)
        return (fit - kl).mean()

    return maximise(
        bound,
        [p for p in posterior.parameters() if p.requires_grad],
        steps=steps,
        rate=rate,
        seed=seed,
        # A sum over observations, so that the step size of free parameters does not depend on their
        # number.
        weight=1 if seen is None else count,
        largest=10.0 * count**0.5,
    )


def gradient_variance(
    posterior: AttentionPosterior,
    seen: Float[Tensor, "observation valuedim"],
    analytic: bool,
    repeats: int = 200,
) -> tuple[float, float]:
    """Returns the squared norm of the bound's mean gradient, and the total variance of a gradient.

    Args:
        posterior: The approximate posterior.
        seen: Observations over which the bound is averaged.
        analytic: Whether the KL is computed exactly or estimated from the draw.
        repeats: Number of gradients, of one draw each, from which the variance is estimated.
    """
    check_count("repeats", repeats)
    trained = [p for p in posterior.parameters() if p.requires_grad]
    rows = []
    for _ in range(repeats):
        fit, kl = bound_terms(posterior, seen, 1, analytic)
        parts = torch.autograd.grad((fit - kl).mean(), trained, allow_unused=True)
        rows.append(torch.cat([part.flatten() for part in parts if part is not None]))
    gradients = torch.stack(rows)
    return gradients.mean(0).square().sum().item(), gradients.var(0).sum().item()


def exact_attention(
    model: AttentionModel,
    seen: Float[Tensor, "observation valuedim"],
    draws: int,
    proposals: int = 20_000,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "draw observation key"]:
    """Draws weights from the exact posterior by importance resampling of prior draws.

    The number of proposals must be large enough for many of them to have a high likelihood.
    """
    found: list[Tensor] = []
    for each in seen:
        weights = model.draw_weights(proposals, generator)
        share = torch.softmax(model.log_likelihood(weights, each), 0)
        chosen = torch.multinomial(share, draws, replacement=True, generator=generator)
        found.append(weights[chosen])
    return torch.stack(found, 1)
