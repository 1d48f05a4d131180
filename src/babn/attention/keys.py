"""Bayesian attention belief networks with one random variable per key."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Scores
from babn.attention.masking import (
    Mask,
    is_rowwise,
    log_normalize,
    normalize,
    tokens_seen,
    zero_masked,
)
from babn.attention.noise_source import NoiseLike
from babn.attention.prior import KeyNetwork
from babn.attention.rule import AttentionRule, ChainShape, Posterior
from babn.distributions import Gamma, Weibull, noise_for, weibull_gamma
from babn.distributions.location_scale import LogLocationScale

if TYPE_CHECKING:
    from babn.attention.belief import BeliefConfig

SMALLEST_K = 0.1
"""Floor of the shapes.

At smaller shapes one key takes all the weight, and the KL, which grows with the factorial of 1/k,
dominates the likelihood.
"""

SMALLEST_ENERGY = 1e-6
"""Floor of the mean energy, below which all keys count as equal."""

LARGEST_K = 1e4
"""Ceiling of the shapes, above which the noise is below the resolution of float32."""


@dataclass(frozen=True)
class KeyPosterior(Posterior):
    r"""Weights $W_{ij} \propto e^{\Phi_{ij}} E_j$ with one positive variable $E_j$ for each key.

    The variables have mean one, so that the posterior mean is softmax attention.

    Args:
        scores: The scores $\Phi$ and the mask of the call.
        variables: The distribution of $E$, one row for all queries.
        elementwise_kl: Computes the KL of $E$ from its prior.

    Example:
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> zero = torch.zeros(1, 1, 1, 2)
        >>> posterior = KeyPosterior(scores, Weibull(zero + 1, zero), lambda: zero)
        >>> posterior.relative_std()
        tensor([[[[1., 1.]]]])
    """

    scores: Scores
    variables: LogLocationScale
    elementwise_kl: Callable[[], Float[Tensor, "batch head 1 key"]]

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """The softmax of the scores."""
        return normalize(self.scores.phi, self.scores.mask)

    def log_sample(self, noise: NoiseLike) -> Float[Tensor, "batch head 1 key"]:
        r"""A draw of $\log E$, a bias on the keys."""
        queries = self.scores.phi.shape[-2]
        g = noise.key_noise(self.variables.noise, self.variables.loc.detach(), queries)
        return self.variables.log_sample_from(g)

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """Softmax weights with a random bias on each key."""
        return normalize(self.scores.phi + self.log_sample(noise_source), self.scores.mask)

    def at_level(self, level: float) -> "KeyPosterior":
        """The posterior with the noise of $E$ multiplied by a level; prior and KL stay the same."""
        return replace(self, variables=self.variables.at_level(level))

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Standard deviation of $E_j$, the same for every query."""
        return zero_masked(self.variables.relative_std.expand_as(self.scores.phi), self.scores.mask)

    def kl_mask(self, pairs: Mask | None) -> Mask | None:
        """The keys that any query sees."""
        return keys_seen(pairs)

    def kl(self) -> Float[Tensor, "batch head 1 key"]:
        """KL of each key's variable from its prior."""
        return self.elementwise_kl()


class KeyBeliefRule(AttentionRule):
    r"""A Weibull variable with mean one and a gamma prior for each key and head.

    $$k_j = \rho\, e^{a} \frac{\lVert K_j - \bar K \rVert^2}{\nu}, \qquad
    E_j \sim \mathrm{Weibull}(k_j, 1 / m(k_j)), \qquad
    \alpha_j = n\,\mathrm{softmax}_j(f(K)).$$

    $\bar K$ and $\nu$ are the means of $K_j$ and $\lVert K_j - \bar K \rVert^2$ over the keys of
    the call. Softmax is invariant to what all keys have in common, so a key near $\bar K$ carries
    little information and is noisy, and a key far from it is certain. $a$ is learnt per layer. The
    shapes do not depend on any random initialisation.

    Where queries see different keys, as in causal models, $\bar K = 0$ and $\nu$ is the mean of
    each head in the dry run. The shape of a key is then independent of later keys, so that caches
    and sliding windows change nothing.

    The Weibull posterior and the gamma prior are those of
    [Zhang et al. 2021](https://arxiv.org/abs/2106.05251), which has one variable per query and key.

    Args:
        config: The settings of the method.
        shape: Sizes of the chain.

    Example:
        >>> from babn.attention.belief import BeliefConfig
        >>> rule = BeliefConfig(rho=2.0).build(ChainShape(1, 8, parameter_sets=(0,)))
        >>> scores = Scores(torch.zeros(1, 1, 3, 5), None, torch.zeros(1, 1, 5, 8))
        >>> rule(0, scores, None).variables.k  # all keys are equal
        tensor([[[[2., 2., 2., 2., 2.]]]], grad_fn=<ClampBackward1>)
    """

    energies: Tensor

    def __init__(self, config: "BeliefConfig", shape: ChainShape) -> None:
        super().__init__()
        self.config = config
        self.parameter_sets, self.rowwise = shape.parameter_sets, shape.rowwise
        sets = max(shape.parameter_sets) + 1
        self.log_shape = nn.Parameter(torch.zeros(sets))
        self.prior_nets = nn.ModuleList(
            KeyNetwork(shape.head_dim, config.prior_hidden) for _ in range(sets)
        )
        self.register_buffer("energies", torch.full((sets, shape.heads), float(shape.head_dim)))

    def observe(self, keys: Sequence[Float[Tensor, "batch keyhead key dim"]]) -> None:
        r"""Sets $\nu$ of causal models to the mean over the keys of the dry run."""
        if any(key.is_meta for key in keys):
            return
        pairs = list(zip(keys, self.parameter_sets, strict=True))
        for own in set(self.parameter_sets):
            energies = [
                _energy(key.double()).mean(dim=(0, 2)) for key, each in pairs if each == own
            ]
            energy = torch.stack(energies).mean(0)
            energy = energy.clamp(min=SMALLEST_ENERGY)
            groups = self.energies.shape[1] // len(energy)
            self.energies[own] = energy.repeat_interleave(groups).to(self.energies)

    def forward(self, step: int, scores: Scores, upward: Any) -> KeyPosterior:
        """The posterior of step `step`."""
        q = self._variables(step, scores)
        return KeyPosterior(scores, q, lambda: self._kl(step, scores, q))

    def _variables(self, step: int, scores: Scores) -> Weibull:
        own = self.parameter_sets[step]
        key, heads = scores.key.to(scores.phi.dtype), scores.phi.shape[1]
        rowwise = is_rowwise(scores.mask) if self.rowwise is None else self.rowwise
        energy = _energy(key) if rowwise else relative_energy(key, keys_seen(scores.mask))
        energy = energy.repeat_interleave(heads // energy.shape[1], dim=1)
        if rowwise:
            energy = energy / self.energies[own].to(energy)[:, None]
        k = self.config.rho * self.log_shape[own].to(energy).exp() * energy.unsqueeze(2)
        k = k.clamp(SMALLEST_K, LARGEST_K)
        log_lam = -noise_for("weibull", self.config.noise).log_moment(k.reciprocal())
        return Weibull(k, log_lam, self.config.noise, torch.zeros_like(log_lam))

    def _kl(self, step: int, scores: Scores, q: Weibull) -> Float[Tensor, "batch head 1 key"]:
        seen = keys_seen(scores.mask)
        prior_net = cast(KeyNetwork, self.prior_nets[self.parameter_sets[step]])
        values = prior_net(scores.key.to(scores.phi.dtype))
        values = values.repeat_interleave(q.k.shape[1] // values.shape[1], dim=1).unsqueeze(2)
        log_alpha = log_normalize(values, seen) + _log_count(seen, q.k)
        kl = weibull_gamma(q, Gamma(log_alpha, self.config.beta))
        return zero_masked(kl, seen)


def _energy(key: Float[Tensor, "batch keyhead key dim"]) -> Float[Tensor, "batch keyhead key"]:
    return key.square().sum(-1)


def relative_energy(
    key: Float[Tensor, "batch keyhead key dim"], seen: Mask | None
) -> Float[Tensor, "batch keyhead key"]:
    """Squared distance of each key from the mean key, divided by its mean; 1 if all are equal.

    Args:
        key: The keys.
        seen: The keys that enter the means, as a mask of one row.

    Example:
        >>> relative_energy(torch.tensor([[[[0.0], [0.0], [3.0]]]]), None)
        tensor([[[0.5000, 0.5000, 2.0000]]])
    """
    if seen is None:
        energy = _energy(key - key.mean(-2, keepdim=True))
        average = energy.mean(-1, keepdim=True)
    else:
        hidden = ~seen.any(1).squeeze(1).unsqueeze(1)
        count = (~hidden).sum(-1, keepdim=True).clamp(min=1).to(key.dtype)
        visible = key.masked_fill(hidden.unsqueeze(-1), 0.0)
        mean = visible.sum(-2, keepdim=True) / count.unsqueeze(-1)
        energy = _energy(visible - mean).masked_fill(hidden, 0.0)
        average = energy.sum(-1, keepdim=True) / count
    equal = average <= SMALLEST_ENERGY
    return torch.where(equal, 1.0, energy / average.masked_fill(equal, 1.0))


def keys_seen(mask: Mask | None) -> Mask | None:
    """The keys that any query sees, as a mask of one row."""
    return None if mask is None else tokens_seen(mask).unsqueeze(2)


def _log_count(seen: Mask | None, like: Tensor) -> Tensor | float:
    """Logarithm of the number of keys that take part."""
    if seen is None:
        return math.log(max(like.shape[-1], 1))
    return seen.sum(-1, keepdim=True).clamp(min=1).to(like.dtype).log()
