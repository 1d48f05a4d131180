"""Bayesian attention belief networks with one random variable for each key."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Scores
from babn.attention.masking import Mask, log_normalize, normalize, tokens_seen, zero_masked
from babn.attention.prior import KeyNetwork
from babn.attention.randomness import Drawing
from babn.attention.rule import AttentionRule, ChainShape, Posterior
from babn.distributions import Gamma, Weibull, noise_for, weibull_gamma
from babn.distributions.location_scale import LogLocationScale

if TYPE_CHECKING:
    from babn.attention.belief import BeliefConfig

SMALLEST_K = 0.1
"""Floor of the shapes: below it one key takes all.

The KL, which grows with the factorial of 1/k, would dominate the likelihood.
"""

SMALLEST_ENERGY = 1e-6
"""Floor of the mean energy, for heads whose keys are all zero."""

LARGEST_K = 1e4
"""Ceiling of the shapes, above which float32 cannot tell the noise from none."""


@dataclass(frozen=True)
class KeyPosterior(Posterior):
    r"""Weights $W_{ij} \propto e^{\Phi_{ij}} E_j$ with one positive variable $E_j$ for each key.

    The variables have mean one, so that the posterior mean is softmax attention.

    Attributes:
        scores: The scores $\Phi$ and the mask of the call.
        variables: The distribution of $E$, one row for all queries.
        elementwise_kl: Computes the KL of $E$ from its prior.
    """

    scores: Scores
    variables: LogLocationScale
    elementwise_kl: Callable[[], Float[Tensor, "batch head 1 key"]]

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """The softmax of the scores."""
        return normalize(self.scores.phi, self.scores.mask)

    def log_sample(self, noise: Drawing) -> Float[Tensor, "batch head 1 key"]:
        r"""A draw of $\log E$, which is a bias on the keys."""
        queries = self.scores.phi.shape[-2]
        g = noise.key_noise(self.variables.noise, self.variables.loc.detach(), queries)
        return self.variables.log_sample_from(g)

    def sample_weights(self, randomness: Drawing) -> Float[Tensor, "batch head query key"]:
        """Softmax weights with a random bias on each key."""
        return normalize(self.scores.phi + self.log_sample(randomness), self.scores.mask)

    def at_level(self, level: float) -> "KeyPosterior":
        """The variables' noise multiplied by a level; the prior and the KL stay."""
        return replace(self, variables=self.variables.at_level(level))

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Standard deviation of $E_j$, the same for every query."""
        return zero_masked(self.variables.relative_std.expand_as(self.scores.phi), self.scores.mask)

    def kl_mask(self, pairs: Mask | None) -> Mask | None:
        """The keys at which any query looks."""
        return keys_seen(pairs)

    def divergence(self) -> Float[Tensor, "batch head 1 key"]:
        """KL of each key's variable from its prior."""
        return self.elementwise_kl()


class KeyBeliefRule(AttentionRule):
    r"""A Weibull variable with mean one for each key and head, and a gamma prior for each.

    $$k_j = \rho\, e^{a} \frac{\lVert K_j \rVert^2}{\nu}, \qquad
    E_j \sim \mathrm{Weibull}(k_j, 1 / m(k_j)), \qquad
    \alpha_j = n\,\mathrm{softmax}_j(f(K)).$$

    The scores of a key vary over queries with $\lVert K_j \rVert^2$: a key that distinguishes
    between queries is certain, one that says little is noisy. $a$ is learnt and $\nu$ the mean of
    $\lVert K_j \rVert^2$ in the dry run, both for each head. Nothing else that is added to a model
    enters the shapes, and a key keeps its shape whatever comes after it, so that caches, masks and
    windows change nothing.

    Args:
        config: The method's settings.
        shape: Sizes of the chain.
    """

    energies: Tensor

    def __init__(self, config: "BeliefConfig", shape: ChainShape) -> None:
        super().__init__()
        self.config = config
        self.parameter_sets = shape.parameter_sets
        sets = range(max(shape.parameter_sets) + 1)
        self.log_shapes = nn.ParameterList(torch.zeros(shape.heads) for _ in sets)
        self.prior_nets = nn.ModuleList(
            KeyNetwork(shape.head_dim, config.prior_hidden) for _ in sets
        )
        self.register_buffer(
            "energies", torch.full((len(sets), shape.heads), float(shape.head_dim))
        )

    def observe(self, keys: Sequence[Float[Tensor, "batch keyhead key dim"]]) -> None:
        r"""Sets $\nu$ to the mean over the dry run's keys of each parameter set."""
        if any(key.is_meta for key in keys):
            return
        for own in set(self.parameter_sets):
            steps = [
                key for key, each in zip(keys, self.parameter_sets, strict=True) if each == own
            ]
            energy = torch.stack([_energy(key.double()).mean(dim=(0, 2)) for key in steps]).mean(0)
            energy = energy.clamp(min=SMALLEST_ENERGY)
            groups = self.energies.shape[1] // len(energy)
            self.energies[own] = energy.repeat_interleave(groups).to(self.energies)

    def forward(self, step: int, scores: Scores, climbed: Any) -> KeyPosterior:
        """The posterior of step `step`."""
        q = self._variables(step, scores)
        return KeyPosterior(scores, q, lambda: self._kl(step, scores, q))

    def _variables(self, step: int, scores: Scores) -> Weibull:
        own = self.parameter_sets[step]
        energy = _energy(scores.key.to(scores.phi.dtype))
        energy = energy.repeat_interleave(scores.phi.shape[1] // energy.shape[1], dim=1)
        factor = self.log_shapes[own].to(energy).exp() / self.energies[own].to(energy)
        k = self.config.rho * factor[:, None, None] * energy.unsqueeze(2)
        k = k.clamp(SMALLEST_K, LARGEST_K)
        log_lam = -noise_for("weibull", self.config.noise).log_moment(k.reciprocal())
        return Weibull(k, log_lam, self.config.noise, torch.zeros_like(log_lam))

    def _kl(self, step: int, scores: Scores, q: Weibull) -> Float[Tensor, "batch head 1 key"]:
        seen = keys_seen(scores.mask)
        values = cast(KeyNetwork, self.prior_nets[self.parameter_sets[step]])(
            scores.key.to(scores.phi.dtype)
        )
        values = values.repeat_interleave(q.k.shape[1] // values.shape[1], dim=1).unsqueeze(2)
        log_alpha = log_normalize(values, seen) + _log_count(seen, q.k)
        kl = weibull_gamma(q, Gamma(log_alpha, self.config.beta))
        return zero_masked(kl, seen)


def _energy(key: Float[Tensor, "batch keyhead key dim"]) -> Float[Tensor, "batch keyhead key"]:
    return key.square().sum(-1)


def keys_seen(mask: Mask | None) -> Mask | None:
    """The keys at which any query looks, as a mask of one row."""
    return None if mask is None else tokens_seen(mask).unsqueeze(2)


def _log_count(seen: Mask | None, like: Tensor) -> Tensor | float:
    """Logarithm of the number of keys that take part."""
    if seen is None:
        return math.log(max(like.shape[-1], 1))
    return seen.sum(-1, keepdim=True).clamp(min=1).to(like.dtype).log()
