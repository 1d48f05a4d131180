"""Monte Carlo dropout on attention weights (Gal & Ghahramani, 2016), a baseline."""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import zero_masked
from babn.attention.noise_source import NoiseLike
from babn.attention.rule import AttentionRule, ChainShape, RuleConfig
from babn.attention.softmax import PointMass
from babn.errors import ConfigError

HIGHEST = 0.99
"""The largest rate that a noise level can reach."""


@dataclass(frozen=True, kw_only=True)
class McDropoutConfig(RuleConfig):
    """Dropout on attention weights, in training and whenever samples are drawn.

    Attributes:
        p: Probability that a weight is dropped.
    """

    rule: ClassVar[str] = "mc-dropout"

    p: float = 0.1

    def __post_init__(self) -> None:
        """Refuses a probability outside [0, 1)."""
        super().__post_init__()
        if not isinstance(self.p, Real) or not 0 <= self.p < 1:
            raise ConfigError(f"p={self.p!r} is not possible. Give a number from 0 to below 1.")

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """In the mean nothing is dropped."""
        return not sample

    def build(self, shape: ChainShape) -> "McDropoutRule":
        """The rule, which has no parameters."""
        return McDropoutRule(self.p)


@dataclass(frozen=True)
class DroppedWeights(PointMass):
    """Softmax weights times independent Bernoulli variables over their mean."""

    p: float

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """Softmax weights, some dropped, the others scaled up."""
        weights = self.mean_weights()
        kept = noise_source.uniform(weights.detach()) >= self.p
        return weights * kept / (1 - self.p)

    def weight_relative_std(self) -> Float[Tensor, "batch head query key"]:
        """The same as `relative_std`: dropped weights are not normalised again."""
        return self.relative_std()

    def at_level(self, level: float) -> "DroppedWeights":
        """The same weights, dropped `level` times as often."""
        return replace(self, p=min(level * self.p, HIGHEST))

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        r"""$\sqrt{p / (1 - p)}$ for every pair."""
        spread = (self.p / (1 - self.p)) ** 0.5
        return zero_masked(torch.full_like(self.scores.phi, spread), self.scores.mask)


class McDropoutRule(AttentionRule):
    """Softmax attention with dropout that stays on when samples are drawn."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, step: int, scores: Scores, climbed: Any) -> DroppedWeights:
        """The dropped weights' distribution."""
        return DroppedWeights(scores, self.p)
