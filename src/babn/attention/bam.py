"""Bayesian attention modules, the paper's baseline.

Fan, Zhang, Chen, Zhou, *Bayesian Attention Modules*, NeurIPS 2020,
<https://arxiv.org/abs/2010.10604>.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Scores
from babn.attention.method import AttentionMethod, ChainShape, MethodConfig
from babn.attention.posterior import NormalizedPosterior, log_weights
from babn.attention.prior import KeyNetwork
from babn.distributions import (
    Gamma,
    LogNormal,
    NoiseName,
    Weibull,
    lognormal_lognormal,
    noise_for,
    weibull_gamma,
)
from babn.distributions.special import Floats
from babn.validation import check_at_least, check_count


@dataclass(frozen=True, kw_only=True)
class BamConfig(MethodConfig):
    """Settings of Bayesian attention modules: one noise level for all query-key pairs.

    See [Fan et al. 2020](https://arxiv.org/abs/2010.10604).

    Attributes:
        family: `"weibull"` with a gamma prior, or `"lognormal"` with a lognormal prior.
        k: Shape of the Weibull posterior; larger means less noise.
        sigma: Standard deviation of log weights of the lognormal posterior.
        prior: `"contextual"` (an MLP over the keys) or `"constant"`.
        alpha: Shape of the constant gamma prior; its log is the mean of the log weights of the
            lognormal prior.
        beta: Rate of the gamma prior.
        prior_sigma: Standard deviation of log weights of the lognormal prior.
        prior_hidden: Hidden width of the contextual prior's MLP.
        scores: Whether the posterior is centred at normalised or raw scores.
        noise: `"exact"`, `"truncated"` to (0.1, 0.9), or `"truncated-paper"`.

    Example:
        >>> BamConfig(k=5.0).family
        'weibull'
    """

    name: ClassVar[str] = "bam"

    family: Literal["weibull", "lognormal"] = "weibull"
    k: float = 10.0
    sigma: float = 0.1
    prior: Literal["contextual", "constant"] = "contextual"
    alpha: float = 1.0
    beta: float = 1.0
    prior_sigma: float = 1.0
    prior_hidden: int = 10
    scores: Literal["normalized", "raw"] = "normalized"
    noise: NoiseName = "exact"

    def __post_init__(self) -> None:
        """Validates the fields."""
        super().__post_init__()
        for name in ("k", "sigma", "alpha", "beta", "prior_sigma"):
            check_at_least(name, getattr(self, name), 0.0, strictly=True)
        check_count("prior_hidden", self.prior_hidden)

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """Whether a call is the posterior mean, which is softmax attention."""
        return not sample and not with_kl

    def build(self, shape: ChainShape) -> "BamMethod":
        """The method for a chain; only a contextual prior has parameters."""
        return BamMethod(self, shape)


class BamMethod(AttentionMethod):
    r"""A posterior with mean $e^\Phi$ and one noise level.

    $$S \sim \mathrm{Weibull}(k,\ e^\Phi / m(k)), \quad \text{prior } \mathrm{Gamma}(\alpha, \beta),
    \qquad\text{or}\qquad
    \log S \sim N(\Phi - \log m(\sigma),\ \sigma^2), \quad
    \text{prior } \log S \sim N(\log\alpha, \sigma_p^2),$$

    with $m$ the moment of the noise ([Fan et al. 2020](https://arxiv.org/abs/2010.10604)).

    Args:
        config: The settings of the method.
        shape: Sizes of the chain.

    Example:
        >>> method = BamConfig(k=5.0).build(ChainShape(heads=1, head_dim=8, parameter_sets=(0,)))
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> method(0, scores, None).mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    def __init__(self, config: BamConfig, shape: ChainShape) -> None:
        super().__init__()
        self.config = config
        self.parameter_sets = shape.parameter_sets
        scale = 1 / config.k if config.family == "weibull" else config.sigma
        noise = noise_for(config.family, config.noise)
        at = torch.tensor(scale, dtype=torch.float64, device="cpu")
        self.log_moment = float(noise.log_moment(at))
        contextual = config.prior == "contextual"
        count = max(shape.parameter_sets) + 1 if contextual else 0
        self.prior_nets = nn.ModuleList(
            KeyNetwork(shape.head_dim, config.prior_hidden) for _ in range(count)
        )

    def forward(self, step: int, scores: Scores, upward: Any) -> NormalizedPosterior:
        """The posterior of step `step`."""
        phi = log_weights(scores, self.config.scores == "normalized")
        q = self._posterior(phi)
        return NormalizedPosterior(
            q, scores.mask, lambda: self._kl(q, self._log_alpha(step, scores))
        )

    def _posterior(self, phi: Float[Tensor, "batch head query key"]) -> Weibull | LogNormal:
        config, loc = self.config, phi - self.log_moment
        if config.family == "weibull":
            return Weibull(phi.new_full((), config.k), loc, config.noise, log_mean=phi)
        return LogNormal(loc, phi.new_full((), config.sigma), config.noise, log_mean=phi)

    def _kl(self, q: Weibull | LogNormal, log_alpha: Floats) -> Tensor:
        if isinstance(q, Weibull):
            return weibull_gamma(q, Gamma(log_alpha, self.config.beta))
        prior_sigma = q.sigma.new_full((), self.config.prior_sigma)
        return lognormal_lognormal(q, LogNormal(log_alpha, prior_sigma))

    def _log_alpha(self, step: int, scores: Scores) -> Floats:
        if self.config.prior == "constant":
            return scores.phi.new_full((), math.log(self.config.alpha))
        return self.prior_net(step).log_alpha(scores)

    def prior_net(self, step: int) -> KeyNetwork:
        """The prior network of a layer."""
        return cast(KeyNetwork, self.prior_nets[self.parameter_sets[step]])
