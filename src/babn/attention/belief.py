"""Bayesian attention belief networks (Zhang, Fan, Chen, Zhou, ICML 2021)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from babn.attention.fused import (
    FusedPosterior,
    FusedResult,
    HeadLift,
    Request,
    softmax_weights,
    takes_products,
    weibull_attention,
)
from babn.attention.inputs import Inputs, Scores
from babn.attention.keys import SMALLEST_K, KeyBeliefRule
from babn.attention.masking import Mask, from_ranks, normalize, ranks, to_ranks
from babn.attention.prior import KeyNetwork
from babn.attention.rule import KL_WEIGHT, AttentionRule, ChainShape, RuleConfig
from babn.attention.stochastic import NormalizedPosterior, log_weights
from babn.attention.upward import (
    Axis,
    AxisMap,
    climb,
    climb_and_lift_by_products,
    climb_by_kernels,
    climb_by_products,
    joint_map,
    joint_weights,
)
from babn.distributions import Gamma, NoiseName, Weibull, noise_for, weibull_gamma
from babn.distributions.special import log_softplus
from babn.errors import ConfigError
from babn.validation import check_at_least, check_count

LARGEST_PHI = 30.0
"""Raw scores above this add no noise that float32 could tell from none."""


PAIRS = {
    "noise_over": "pairs",
    "rho": 12.0,
    "sigma": 1e-6,
    "noise": "truncated",
    "kl_weight": KL_WEIGHT,
}
"""Settings of noise over pairs that differ from the fields' defaults."""


@dataclass(frozen=True, kw_only=True)
class BeliefConfig(RuleConfig):
    r"""Bayesian attention belief networks.

    Attributes:
        noise_over: `"keys"`, one variable for each key that all queries share, or `"pairs"`, one
            for each query and key as in the paper. `BeliefConfig.pairs()` has settings that fit it.
        rho: The Weibull shape $k$ of a typical key; larger means less noise. With
            `noise_over="pairs"` the weight of the upward path in the shape.
        beta: Rate of the gamma prior.
        noise: `"exact"`, `"truncated"` to (0.1, 0.9) with its own mean, or `"truncated-paper"` with
            the mean of untruncated noise.
        prior_hidden: Width of the prior's network over the keys.
        sigma: For pairs, the weight of the upward path in the Weibull scale; 0 keeps the mean at
            softmax.
        scores: For pairs, whether $\Phi$ is normalised over the keys (a log softmax) or raw, as in
            the paper.
        upward: For pairs, the axis of the upward path's linear maps: `"keys"` (the paper's; up to
            `max_length` keys) or `"heads"` (any length, few parameters).
        upward_rank: Rank of the maps over keys, for fewer parameters and operations; 0 for full.
        upward_share: Layers in a row that share one state of the upward path, for less memory and
            fewer operations. Each has maps of its own from there to shape and scale.
        max_length: The largest number of keys with `upward="keys"`.
    """

    rule: ClassVar[str] = "belief"

    noise_over: Literal["keys", "pairs"] = "keys"
    rho: float = 2.0
    beta: float = 1.0
    noise: NoiseName = "exact"
    prior_hidden: int = 10
    kl_weight: float = 0.01
    sigma: float = 0.0
    scores: Literal["normalized", "raw"] = "normalized"
    upward: Axis = "keys"
    upward_rank: int = 0
    upward_share: int = 1
    max_length: int = 512

    def __post_init__(self) -> None:
        """Refuses values that cannot work."""
        super().__post_init__()
        for name in ("rho", "sigma"):
            check_at_least(name, getattr(self, name), 0.0)
        check_at_least("beta", self.beta, 0.0, strictly=True)
        for name in ("upward_share", "max_length", "prior_hidden"):
            check_count(name, getattr(self, name))
        if self.upward_rank != 0:
            check_count("upward_rank", self.upward_rank)
            if self.upward == "heads":
                raise ConfigError(
                    f'upward_rank={self.upward_rank} with upward="heads" is not possible. Leave it '
                    'at 0, since maps over heads are small, or use upward="keys".'
                )
        if self.noise_over == "keys":
            self._check_per_key()

    def _check_per_key(self) -> None:
        check_at_least("rho", self.rho, 0.0, strictly=True)
        for name in ("sigma", "scores", "upward", "upward_rank", "upward_share", "max_length"):
            value = getattr(self, name)
            if value != getattr(BeliefConfig, name):
                raise ConfigError(
                    f"{name}={value!r} is a setting of noise over pairs, and noise_over is 'keys'. "
                    f"Leave it out, or use BeliefConfig.pairs({name}={value!r}); in files and "
                    "commands noise_over=pairs."
                )
        if self.kernel == "triton":
            raise ConfigError(
                'kernel="triton" with noise_over="keys" is not possible: there torch\'s own '
                'attention takes a bias. Use kernel="auto", or BeliefConfig.pairs(kernel="triton").'
            )

    @classmethod
    def pairs(cls, **settings: Any) -> "BeliefConfig":
        """One variable for each query and key, with little noise unless `settings` say otherwise.

        Args:
            **settings: Fields that differ from this preset.
        """
        return cls(**{**PAIRS, **settings})

    @classmethod
    def paper(cls) -> "BeliefConfig":
        """The paper as written: raw scores, its inconsistent truncated noise, the full ELBO."""
        return cls.pairs(
            rho=1.5, scores="raw", noise="truncated-paper", kl_reduction="sum", kl_weight=1.0
        )

    @classmethod
    def released_settings(cls) -> "BeliefConfig":
        """The paper's model with the settings of the authors' released code for VQA.

        Its maps over queries, its states without a chain and its approximate KL are not followed.
        """
        return cls.pairs(rho=1.5, beta=1e-6, noise="truncated-paper", kl_weight=1.0)

    @classmethod
    def completed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Files without `noise_over` are of pairs, whose defaults are those of `pairs`."""
        over = settings.get("noise_over", "pairs")
        return {**PAIRS, **settings} if over == "pairs" else settings

    @property
    def max_keys(self) -> int | None:
        """`max_length` for maps over keys."""
        if self.noise_over == "keys":
            return None
        climbs = self.rho > 0 or self.sigma > 0
        return self.max_length if climbs and self.upward == "keys" else None

    @property
    def fusible(self) -> bool:
        """Pairs have kernels."""
        return self.noise_over == "pairs"

    @property
    def biases_keys(self) -> bool:
        """Samples of variables that all queries share are biases on keys."""
        return self.noise_over == "keys"

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        r"""The posterior mean is softmax attention without $\sigma$."""
        return not sample and not with_kl and self.sigma == 0

    def build(self, shape: ChainShape) -> AttentionRule:
        """The rule with one set of maps and one prior for each parameter set."""
        kind = KeyBeliefRule if self.noise_over == "keys" else BeliefRule
        return kind(self, shape)


@dataclass(frozen=True)
class UpwardStates:
    """The upward path of one forward pass, its keys in the order of ranks.

    Attributes:
        h: The states, the first layer's first.
        rank: Where keys stand among those that their query sees; `None` if all stand as they are.
        share: Layers in a row that have the same state.
        lifts: What layers make of their states for shape and scale, instead of the states.
        joint: Weight and bias of the maps that do so, for each layer, if they are at hand.
    """

    h: list[Float[Tensor, "batch head query key"]]
    rank: Int[Tensor, "#batch #head #query key"] | None
    share: int = 1
    lifts: list[Float[Tensor, "batch head query lifted"]] | None = None
    joint: list[tuple[Tensor, Tensor]] | None = None

    def at(self, step: int) -> Float[Tensor, "batch head query key"]:
        """The state of a layer."""
        return self.h[step // self.share]


class WeibullEncoder(nn.Module):
    r"""One layer's posterior.

    $$k = \rho\,\mathrm{softplus}(f_1(h)) + e^{\Phi}, \qquad
    \lambda = \sigma\,\mathrm{softplus}(f_2(h)) + e^{\Phi} / m(k),$$

    with $m(k) = \Gamma(1 + 1/k)$ or the truncated noise's own moment, so that the mean is $e^\Phi$
    when $\sigma = 0$. `upward_map` is $f_3$ of the upward path, where a state of its own begins.
    """

    def __init__(self, config: BeliefConfig, heads: int, begins: bool = True) -> None:
        super().__init__()
        self.config = config
        size = config.max_length if config.upward == "keys" else heads
        climbs = begins and (config.rho > 0 or config.sigma > 0)
        kind = config.upward, size, config.upward_rank
        self.shape_map = AxisMap(*kind) if config.rho > 0 else None
        self.scale_map = AxisMap(*kind) if config.sigma > 0 else None
        self.upward_map = AxisMap(*kind) if climbs else None

    def forward(
        self, phi: Float[Tensor, "batch head query key"], step: int, up: UpwardStates | None
    ) -> Weibull:
        """The Weibull distribution of the layer's unnormalised weights."""
        k = phi.clamp(max=LARGEST_PHI).exp()
        if self.shape_map is not None and up is not None:
            lifted = from_ranks(F.softplus(self.shape_map(up.at(step))), up.rank)
            k = torch.add(k, lifted, alpha=self.config.rho)
        k = k.clamp(min=SMALLEST_K)
        log_moment = noise_for("weibull", self.config.noise).log_moment(k.reciprocal())
        log_lam, log_mean = phi - log_moment, phi
        if self.scale_map is not None and up is not None:
            lifted = from_ranks(log_softplus(self.scale_map(up.at(step))), up.rank)
            log_lam = torch.logaddexp(lifted + math.log(self.config.sigma), log_lam)
            log_mean = log_lam + log_moment
        return Weibull(k, log_lam, self.config.noise, log_mean)

    def lift_maps(self) -> list[AxisMap]:
        """The maps from a state to shape and scale, as far as they are there."""
        return [map for map in (self.shape_map, self.scale_map) if map is not None]

    def lift(self, step: int, up: UpwardStates | None) -> Tensor | HeadLift | None:
        """What the upward path gives to shape and scale, side by side, before softplus."""
        maps = self.lift_maps()
        if not maps or up is None:
            return None
        if up.lifts is not None:
            return up.lifts[step]
        if self.config.upward == "heads":
            weight = torch.cat([map.weight for map in maps])
            return HeadLift(up.at(step), weight, torch.cat([map.bias for map in maps]))
        if up.joint is not None:
            return F.linear(up.at(step), *up.joint[step])
        if up.rank is None:
            return joint_map(maps, up.at(step))
        return torch.stack([from_ranks(map(up.at(step)), up.rank) for map in maps], -1).flatten(-2)


class BeliefRule(AttentionRule):
    """A chain of Weibull posteriors with an upward path, and gamma priors read off the keys."""

    def __init__(self, config: BeliefConfig, shape: ChainShape) -> None:
        super().__init__()
        self.config = config
        self.parameter_sets = shape.parameter_sets
        sets = range(max(shape.parameter_sets) + 1)
        begin = set(shape.parameter_sets[:: config.upward_share])
        self.posterior_nets = nn.ModuleList(
            [WeibullEncoder(config, shape.heads, each in begin) for each in sets]
        )
        self.prior_nets = nn.ModuleList(
            [KeyNetwork(shape.head_dim, config.prior_hidden) for _ in sets]
        )

    def climb(self, first: Scores) -> UpwardStates | None:
        """The upward path from the chain's first scores."""
        maps = self._upward_maps()
        if not maps:
            return None
        return self._climb(maps, normalize(first.phi, first.mask), first.mask)

    def climb_fused(self, first: Inputs) -> UpwardStates | None:
        """The same in the precision of the queries."""
        maps = self._upward_maps()
        if not maps:
            return None
        if self.config.upward == "heads" and (first.mask is None or first.mask.shape[1] == 1):
            # Maps over heads keep pairs apart, so that what they make of masked ones goes nowhere.
            return UpwardStates(climb_by_kernels(maps, first), None, self.config.upward_share)
        return self._climb(maps, softmax_weights(first), first.mask, by_kernels=True)

    def _climb(
        self, maps: list[AxisMap], top: Tensor, mask: Mask | None, by_kernels: bool = False
    ) -> UpwardStates:
        over_keys, share = self.config.upward == "keys", self.config.upward_share
        rank = ranks(mask) if over_keys else None
        if rank is not None and mask is not None:
            places = torch.arange(mask.shape[-1], device=mask.device)
            mask = places < mask.sum(-1, keepdim=True)
        top = to_ranks(top, rank)
        full = over_keys and self.config.upward_rank == 0
        if by_kernels and full and takes_products(top, mask):
            lifts = [self._encoder(step).lift_maps() for step in range(len(self.parameter_sets))]
            if not torch.is_grad_enabled():
                states = climb_by_products(maps, top, mask)
                joint = joint_weights(lifts, top) if rank is None else None
                return UpwardStates(states, rank, share, joint=joint)
            if rank is None and share == 1:
                lifted = climb_and_lift_by_products(maps, lifts, top, mask)
                return UpwardStates([], None, lifts=lifted)
        return UpwardStates(climb(maps, top, mask), rank, share)

    def _upward_maps(self) -> list[AxisMap]:
        steps = range(0, len(self.parameter_sets), self.config.upward_share)
        encoders = [self._encoder(step) for step in steps]
        return [encoder.upward_map for encoder in encoders if encoder.upward_map is not None]

    def forward(
        self, step: int, scores: Scores, climbed: UpwardStates | None
    ) -> NormalizedPosterior:
        """The posterior of step `step`."""
        phi = log_weights(scores, self.config.scores == "normalized")
        q = self._encoder(step)(phi, step, climbed)
        prior_net = self._prior_net(step)
        return NormalizedPosterior(
            q,
            scores.mask,
            lambda: weibull_gamma(q, Gamma(prior_net.log_alpha(scores), self.config.beta)),
        )

    def fused(
        self, step: int, inputs: Inputs, climbed: UpwardStates | None, request: Request
    ) -> FusedResult:
        """The call of step `step` in one kernel."""
        prior = self._prior_net(step).layers() if request.with_kl else None
        posterior = FusedPosterior(
            rho=self.config.rho,
            sigma=self.config.sigma,
            beta=self.config.beta,
            normalized=self.config.scores == "normalized",
            noise=self.config.noise,
        )
        lift = self._encoder(step).lift(step, climbed)
        return weibull_attention(inputs, posterior, request, lift, prior)

    def _prior_net(self, step: int) -> KeyNetwork:
        return cast(KeyNetwork, self.prior_nets[self.parameter_sets[step]])

    def _encoder(self, step: int) -> WeibullEncoder:
        return cast(WeibullEncoder, self.posterior_nets[self.parameter_sets[step]])
