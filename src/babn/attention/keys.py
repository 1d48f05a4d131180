"""Bayesian attention belief networks with one random variable per key."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs, Scores, repeat_heads
from babn.attention.masking import (
    Mask,
    is_rowwise,
    keys_seen,
    log_normalize,
    normalize,
    tokens_seen,
    zero_masked,
)
from babn.attention.method import AttentionMethod, ChainShape
from babn.attention.noise_source import NoiseLike
from babn.attention.posterior import Posterior
from babn.attention.prior import KeyNetwork
from babn.attention.saved_memory import KeyScale
from babn.distributions import Gamma, Weibull, weibull_gamma
from babn.distributions.noise import NoiseName
from babn.distributions.weibull import LogLocationScale

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
class KeyKL:
    """What the KL of a call is computed from: some numbers for each key.

    Args:
        numbers: Scales and locations of the posterior, and logits of the prior's shapes.
        noise: The noise of the posterior.
        seen: The keys that any query sees.
        beta: Rate of the prior.

    Example:
        >>> zero = torch.zeros(1, 1, 1, 4)
        >>> numbers = torch.stack([zero + 1, zero, zero])  # both distributions exponential
        >>> KeyKL(numbers, "exact", None, 1.0).elementwise()
        tensor([[[[0., 0., 0., 0.]]]])
    """

    numbers: Float[Tensor, "number batch head 1 key"]
    noise: NoiseName
    seen: Mask | None
    beta: float

    def elementwise(self) -> Float[Tensor, "batch head 1 key"]:
        """The KL of each variable; zero at keys that no query sees."""
        scale, loc, logits = self.numbers.unbind()
        q = Weibull.with_mean_one(scale, self.noise, loc)
        log_alpha = log_normalize(logits, self.seen) + _log_count(self.seen, logits)
        return zero_masked(weibull_gamma(q, Gamma(log_alpha, self.beta)), self.seen)

    def size(self) -> tuple[Any, ...]:
        """What calls must have in common to be joined."""
        seen = None if self.seen is None else self.seen.shape
        return self.numbers.shape, self.numbers.device, self.noise, seen, self.beta

    @staticmethod
    def joined(calls: Sequence["KeyKL"]) -> "KeyKL":
        """Calls of one size as one batch, which takes no more operations than a single call."""
        batch, masks = calls[0].numbers.shape[1], [x.seen for x in calls if x.seen is not None]
        numbers = torch.cat([each.numbers for each in calls], 1)
        expanded = [each.expand(batch, -1, -1, -1) for each in masks]
        return replace(calls[0], numbers=numbers, seen=torch.cat(expanded) if masks else None)


@dataclass(frozen=True)
class KeyPosterior(Posterior):
    r"""Weights $W_{ij} \propto e^{\Phi_{ij}} E_j$ with one positive variable $E_j$ for each key.

    The variables have mean one, so that the posterior mean is softmax attention.

    Args:
        scores: The scores $\Phi$ and the mask of the call.
        variables: The distribution of $E$, one row for all queries.
        kl_parts: Computes what the KL of $E$ from its prior is made of.

    Example:
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> zero = torch.zeros(1, 1, 1, 2)
        >>> parts = KeyKL(torch.stack([zero + 1, zero, zero]), "exact", None, 1.0)
        >>> posterior = KeyPosterior(scores, Weibull(zero + 1, zero), lambda: parts)
        >>> posterior.relative_std()
        tensor([[[[1., 1.]]]])
    """

    scores: Scores
    variables: LogLocationScale
    kl_parts: Callable[[], KeyKL]

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """The softmax of the scores."""
        return normalize(self.scores.phi, self.scores.mask)

    def log_sample(self, noise: NoiseLike) -> Float[Tensor, "batch head 1 key"]:
        r"""A draw of $\log E$, a bias on the keys."""
        queries = self.scores.phi.shape[-2]
        g = noise.noise(self.variables.noise, self.variables.loc.detach(), queries)
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

    def kl_mask(
        self, mask: Mask | None, rows: Bool[Tensor, "#batch #head query"] | None
    ) -> Bool[Tensor, "#batch #head 1 #key"] | None:
        """The keys that are seen by a query that counts."""
        return keys_seen(mask, rows)

    def kl(self) -> Float[Tensor, "batch head 1 key"]:
        """KL of each key's variable from its prior."""
        return self.kl_parts().elementwise()


class KeyBeliefMethod(AttentionMethod):
    r"""A Weibull variable with mean one and a gamma prior for each key and head.

    $$k_j = \rho\, e^{a} \frac{\lVert K_j - \bar K \rVert^2}{\nu}, \qquad
    E_j \sim \mathrm{Weibull}(k_j, 1 / m(k_j)), \qquad
    \alpha_j = n\,\mathrm{softmax}_j(f(K)).$$

    $\bar K$ and $\nu$ are the means of $K_j$ and $\lVert K_j - \bar K \rVert^2$ over the keys of
    the call. Softmax is invariant to what all keys have in common, so a key near $\bar K$ carries
    little information and is noisy, and a key far from it is certain. $a$ is learnt per layer.
    Nothing depends on a random initialisation: $a$ starts at 0, and the weights of $f$ are always
    the same.

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
        >>> method = BeliefConfig(rho=2.0).build(ChainShape(1, 8, parameter_sets=(0,)))
        >>> scores = Scores(torch.zeros(1, 1, 3, 5), None, torch.zeros(1, 1, 5, 8))
        >>> method(0, scores, None).variables.k.detach()  # all keys are equal
        tensor([[[[2., 2., 2., 2., 2.]]]])
    """

    energies: Tensor

    def __init__(self, config: "BeliefConfig", shape: ChainShape) -> None:
        super().__init__()
        self.config = config
        self.parameter_sets, self.rowwise = shape.parameter_sets, shape.rowwise
        sets = max(shape.parameter_sets) + 1
        self.log_shape = nn.Parameter(torch.zeros(sets))
        with torch.random.fork_rng(devices=[]):  # conversion has no random initialisation
            torch.default_generator.manual_seed(0)
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
                key.double().square().sum(-1).mean(dim=(0, 2)) for key, each in pairs if each == own
            ]
            energy = torch.stack(energies).mean(0).clamp(min=SMALLEST_ENERGY)
            groups = self.energies.shape[1] // len(energy)
            self.energies[own] = energy.repeat_interleave(groups).to(self.energies)

    def forward(self, step: int, scores: Scores, upward: Any) -> KeyPosterior:
        """The posterior of step `step`."""
        own, key = self.parameter_sets[step], scores.key
        typical, seen = None, None
        if self.is_rowwise(scores):
            typical = self.energies[own].unflatten(0, (key.shape[1], -1))[:, 0]
        elif scores.mask is not None:
            seen = tokens_seen(scores.mask).any(1, keepdim=True).unsqueeze(-1)
        limits = SMALLEST_K, LARGEST_K, SMALLEST_ENERGY
        scale = KeyScale.apply(key, self.log_shape, own, self.config.rho, typical, seen, limits)
        scale = repeat_heads(scale.unsqueeze(2), scores.phi.shape[1]).to(scores.phi.dtype)
        q = Weibull.with_mean_one(scale, self.config.noise)
        return KeyPosterior(scores, q, lambda: self._kl_parts(step, scores, q))

    def is_rowwise(self, call: Scores | Inputs) -> bool:
        """Whether queries see different keys, so that shapes are relative to the dry run's."""
        if self.rowwise is not None:
            return self.rowwise
        return call.causal or is_rowwise(call.mask)

    def _kl_parts(self, step: int, scores: Scores, q: Weibull) -> KeyKL:
        prior_net = cast(KeyNetwork, self.prior_nets[self.parameter_sets[step]])
        logits = prior_net(scores.key).to(scores.phi.dtype).unsqueeze(2)
        logits = repeat_heads(logits, scores.phi.shape[1])
        numbers = torch.stack([q.scale, q.loc, logits])
        return KeyKL(numbers, self.config.noise, keys_seen(scores.mask), self.config.beta)


def _log_count(seen: Mask | None, like: Tensor) -> Tensor | float:
    """Logarithm of the number of keys that take part."""
    if seen is None:
        return math.log(max(like.shape[-1], 1))
    return seen.sum(-1, keepdim=True).clamp(min=1).to(like.dtype).log()
