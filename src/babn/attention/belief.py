r"""Bayesian attention belief networks: Weibull posteriors with an upward path, gamma priors.

Zhang, Fan, Chen, Zhou, *Bayesian Attention Belief Networks*, ICML 2021,
<https://arxiv.org/abs/2106.05251>. Section 3.1 of the paper has the prior, Section 3.2 the
posterior.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from babn.attention.inputs import Scores
from babn.attention.keys import SMALLEST_K, KeyBeliefMethod
from babn.attention.masking import Mask, from_ranks, in_rank_order, normalize
from babn.attention.method import KL_WEIGHT, AttentionMethod, ChainShape, MethodConfig
from babn.attention.posterior import NormalizedPosterior, log_weights
from babn.attention.prior import KeyNetwork
from babn.attention.upward import Axis, AxisMap, UpwardStates, upward_path
from babn.distributions import Gamma, NoiseName, Weibull, noise_for, weibull_gamma
from babn.distributions.special import log_softplus
from babn.errors import ConfigError
from babn.validation import check_at_least, check_count

LARGEST_PHI = 30.0
"""Ceiling of raw scores in the shape: above it the noise is below the resolution of float32."""

PAIR_FIELDS = (
    "sigma",
    "scores",
    "smallest_k",
    "upward",
    "max_length",
)
"""Fields that only noise over pairs has."""

PAIRS = {
    "noise_over": "pairs",
    "rho": 12.0,
    "sigma": 1e-6,
    "noise": "truncated",
    "kl_weight": KL_WEIGHT,
}
"""Settings of noise over pairs that differ from the defaults of the fields."""


@dataclass(frozen=True, kw_only=True)
class BeliefConfig(MethodConfig):
    r"""Settings of Bayesian attention belief networks.

    See [Zhang et al. 2021](https://arxiv.org/abs/2106.05251).

    Attributes:
        noise_over: `"keys"`, one variable for each key that all queries share, or `"pairs"`, one
            for each query and key as in the paper. `BeliefConfig.pairs()` has settings for pairs.
        rho: The Weibull shape $k$ of a typical key; larger means less noise. With
            `noise_over="pairs"` the weight of the upward path in the shape.
        beta: Rate of the gamma prior.
        noise: `"exact"`, `"truncated"` to (0.1, 0.9) with its own mean, or `"truncated-paper"` with
            the mean of untruncated noise.
        smallest_k: For pairs, floor of the Weibull shape $k$, below which it has no gradient.
        prior_hidden: Hidden width of the prior's MLP over the keys.
        sigma: For pairs, the weight of the upward path in the Weibull scale; with 0 the posterior
            mean is softmax attention.
        scores: For pairs, whether $\Phi$ is normalised over the keys (a log softmax) or raw, as in
            the paper.
        upward: For pairs, the axis of the upward path's linear maps: `"keys"` (the paper's; up to
            `max_length` keys) or `"heads"` (any length, few parameters).
        max_length: The largest number of keys with `upward="keys"`.

    Example:
        >>> BeliefConfig(rho=4.0).noise_over, BeliefConfig.paper().scores
        ('keys', 'raw')
    """

    name: ClassVar[str] = "belief"

    noise_over: Literal["keys", "pairs"] = "keys"
    rho: float = 2.0
    beta: float = 1.0
    noise: NoiseName = "exact"
    smallest_k: float = SMALLEST_K
    prior_hidden: int = 10
    kl_weight: float = 0.01
    sigma: float = 0.0
    scores: Literal["normalized", "raw"] = "normalized"
    upward: Axis = "keys"
    max_length: int = 512

    def __post_init__(self) -> None:
        """Validates the fields."""
        super().__post_init__()
        for name in ("rho", "sigma"):
            check_at_least(name, getattr(self, name), 0.0)
        for name in ("beta", "smallest_k"):
            check_at_least(name, getattr(self, name), 0.0, strictly=True)
        for name in ("max_length", "prior_hidden"):
            check_count(name, getattr(self, name))
        if self.noise_over == "keys":
            self._check_per_key()

    def _check_per_key(self) -> None:
        check_at_least("rho", self.rho, 0.0, strictly=True)
        for name in PAIR_FIELDS:
            value = getattr(self, name)
            if value != getattr(BeliefConfig, name):
                raise ConfigError(
                    f"{name}={value!r} is a setting of noise over pairs, and noise_over is 'keys'. "
                    f"Leave it out, or use BeliefConfig.pairs({name}={value!r}); in files and "
                    "commands noise_over=pairs."
                )

    @classmethod
    def pairs(cls, **settings: Any) -> "BeliefConfig":
        """Settings for one variable per query and key, with little noise.

        Args:
            **settings: Fields that differ from this preset.
        """
        return cls(**{**PAIRS, **settings})

    @classmethod
    def paper(cls, **settings: Any) -> "BeliefConfig":
        """The method as published: raw scores, truncated noise with the exact mean, full ELBO.

        `rho` (1.5 in the paper's VQA, "any number from 1 to 4" elsewhere), `sigma`, the noise, raw
        scores and the KL weight of 1 after annealing are the paper's. The paper does not state
        `beta`, `prior_hidden`, the axis of the upward maps or a floor of the shape: 1, 10, the keys
        and `smallest_k` are choices of this library.

        Args:
            **settings: Fields that differ from this preset.
        """
        published = {
            "rho": 1.5,
            "scores": "raw",
            "noise": "truncated-paper",
            "smallest_k": SMALLEST_K,
            "kl_reduction": "sum",
            "kl_weight": 1.0,
        }
        return cls.pairs(**{**published, **settings})

    @classmethod
    def released_settings(cls, **settings: Any) -> "BeliefConfig":
        """Settings of the authors' released code for VQA, with the model of the paper.

        The released code also has maps over queries, unchained states and an approximate KL, which
        this preset does not reproduce.

        Args:
            **settings: Fields that differ from this preset.
        """
        released = {"rho": 1.5, "beta": 1e-6, "noise": "truncated-paper", "kl_weight": 1.0}
        return cls.pairs(**{**released, **settings})

    @classmethod
    def completed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Fills in the settings of `pairs`; files without `noise_over` have noise over pairs."""
        over = settings.get("noise_over", "pairs")
        return {**PAIRS, **settings} if over == "pairs" else settings

    @property
    def max_keys(self) -> int | None:
        """`max_length` for an upward path over keys."""
        return self.max_length if self.has_upward_path and self.upward == "keys" else None

    @property
    def has_upward_path(self) -> bool:
        """Whether upward states enter shape or scale."""
        return self.noise_over == "pairs" and (self.rho > 0 or self.sigma > 0)

    @property
    def biases_keys(self) -> bool:
        """Whether samples are biases on keys: with one variable per key."""
        return self.noise_over == "keys"

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        r"""Whether a call is the posterior mean with $\sigma = 0$."""
        return not sample and not with_kl and self.sigma == 0

    def build(self, shape: ChainShape) -> AttentionMethod:
        """The method for a chain, with one posterior and one prior per parameter set."""
        kind = KeyBeliefMethod if self.noise_over == "keys" else BeliefMethod
        return kind(self, shape)


class WeibullEncoder(nn.Module):
    r"""The Weibull posterior of one layer's unnormalised weights (Section 3.2 of the paper).

    $$k = \rho\,\mathrm{softplus}(f_1(h)) + e^{\Phi}, \qquad
    \lambda = \sigma\,\mathrm{softplus}(f_2(h)) + e^{\Phi} / m(k),$$

    with $m(k) = \Gamma(1 + 1/k)$ or the moment of the truncated noise, so that the mean is $e^\Phi$
    when $\sigma = 0$. $f_1(h)$ and $f_2(h)$ are the shape and scale logits. `upward_map` is the map
    $f_3$ of the upward path.

    Args:
        config: The settings of the method.
        heads: Attention heads.

    Example:
        >>> encoder = WeibullEncoder(BeliefConfig.pairs(max_length=4, sigma=0.0), heads=2)
        >>> phi, h = torch.zeros(1, 2, 3, 4), torch.rand(1, 2, 3, 4)
        >>> q = encoder(phi, h)
        >>> q.k.shape, torch.equal(q.log_mean, phi)
        (torch.Size([1, 2, 3, 4]), True)
    """

    def __init__(self, config: BeliefConfig, heads: int) -> None:
        super().__init__()
        self.config = config
        size = config.max_length if config.upward == "keys" else heads
        kind = config.upward, size
        self.shape_map = AxisMap(*kind) if config.rho > 0 else None
        self.scale_map = AxisMap(*kind) if config.sigma > 0 else None
        self.upward_map = AxisMap(*kind) if config.has_upward_path else None

    def forward(
        self,
        phi: Float[Tensor, "batch head query key"],
        h: Float[Tensor, "batch head query key"] | None = None,
        rank: Int[Tensor, "#batch #head #query key"] | None = None,
    ) -> Weibull:
        r"""The distribution of $S$.

        Args:
            phi: The scores $\Phi$.
            h: The upward state of the layer, its keys in rank order.
            rank: Ranks of the keys; `None` if these are their indices.
        """
        # k = rho softplus(f1(h)) + exp(phi)
        k = phi.clamp(max=LARGEST_PHI).exp()
        if self.shape_map is not None and h is not None:
            from_h = from_ranks(F.softplus(self.shape_map(h)), rank)
            k = torch.add(k, from_h, alpha=self.config.rho)
        k = k.clamp(min=self.config.smallest_k)
        # lam = sigma softplus(f2(h)) + exp(phi) / m(k)
        log_moment = noise_for("weibull", self.config.noise).log_moment(k.reciprocal())
        log_lam, log_mean = phi - log_moment, phi
        if self.scale_map is not None and h is not None:
            log_from_h = from_ranks(log_softplus(self.scale_map(h)), rank)
            log_lam = torch.logaddexp(log_from_h + math.log(self.config.sigma), log_lam)
            log_mean = log_lam + log_moment
        return Weibull(k, log_lam, self.config.noise, log_mean)


class BeliefMethod(AttentionMethod):
    r"""A chain of Weibull posteriors with an upward path, and gamma priors from the keys.

    $$q(S) = \prod_{l=1}^L \mathrm{Weibull}(S^l \mid k^l, \lambda^l), \qquad
    p(S) = \prod_{l=1}^L \mathrm{Gamma}(S^l \mid \alpha^l, \beta), \qquad
    W^l = S^l / \textstyle\sum S^l,$$

    with $k^l$ and $\lambda^l$ by `WeibullEncoder` and $\alpha^l$ by
    [`KeyNetwork`][babn.attention.prior.KeyNetwork]
    ([Zhang et al. 2021](https://arxiv.org/abs/2106.05251)).

    Args:
        config: The settings of the method.
        shape: Sizes of the chain.

    Example:
        >>> config = BeliefConfig.pairs(max_length=4)
        >>> method = config.build(ChainShape(heads=2, head_dim=8, parameter_sets=(0, 1)))
        >>> scores = Scores(torch.zeros(1, 2, 3, 4), None, torch.zeros(1, 2, 4, 8))
        >>> upward = method.upward(scores)
        >>> method(1, scores, upward).mean_weights().shape
        torch.Size([1, 2, 3, 4])
    """

    def __init__(self, config: BeliefConfig, shape: ChainShape) -> None:
        super().__init__()
        self.config = config
        self.parameter_sets = shape.parameter_sets
        sets = range(max(shape.parameter_sets) + 1)
        self.posterior_nets = nn.ModuleList([WeibullEncoder(config, shape.heads) for _ in sets])
        self.prior_nets = nn.ModuleList(
            [KeyNetwork(shape.head_dim, config.prior_hidden) for _ in sets]
        )

    def upward(self, first: Scores) -> UpwardStates | None:
        """The upward states, from the scores of the chain's first layer."""
        maps = self.upward_maps()
        if not maps:
            return None
        top, mask, rank = self.top(normalize(first.phi, first.mask), first.mask)
        return UpwardStates(upward_path(maps, top, mask), rank)

    def upward_maps(self) -> list[AxisMap]:
        r"""$f_3^1, \ldots, f_3^L$."""
        maps = [self.encoder(step).upward_map for step in range(len(self.parameter_sets))]
        return [each for each in maps if each is not None]

    def top(
        self, weights: Float[Tensor, "batch head query key"], mask: Mask | None
    ) -> tuple[Tensor, Mask | None, Tensor | None]:
        r"""$h^{L+1} = \mathrm{softmax}(\Phi^1)$ and its mask as the maps take them, and ranks."""
        if self.config.upward == "heads":
            return weights, mask, None
        return in_rank_order(weights, mask)

    def forward(
        self, step: int, scores: Scores, upward: UpwardStates | None
    ) -> NormalizedPosterior:
        """The posterior of step `step`."""
        phi = log_weights(scores, self.config.scores == "normalized")
        state = (None, None) if upward is None else (upward.h[step], upward.rank)
        q, prior = self.encoder(step)(phi, *state), self.prior_net(step)
        return NormalizedPosterior(
            q,
            scores.mask,
            lambda: weibull_gamma(q, Gamma(prior.log_alpha(scores), self.config.beta)),
        )

    def prior_net(self, step: int) -> KeyNetwork:
        """The prior network of a layer."""
        return cast(KeyNetwork, self.prior_nets[self.parameter_sets[step]])

    def encoder(self, step: int) -> WeibullEncoder:
        """The posterior network of a layer."""
        return cast(WeibullEncoder, self.posterior_nets[self.parameter_sets[step]])
