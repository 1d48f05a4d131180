"""Monte Carlo dropout on attention weights, a baseline.

Gal, Ghahramani, *Dropout as a Bayesian Approximation*, ICML 2016,
<https://arxiv.org/abs/1506.02142>.
"""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import zero_masked
from babn.attention.method import AttentionMethod, ChainShape, MethodConfig
from babn.attention.noise_source import NoiseLike
from babn.attention.softmax import PointMass
from babn.errors import ConfigError

HIGHEST = 0.99
"""Ceiling of the dropout rate at large noise levels."""


@dataclass(frozen=True, kw_only=True)
class McDropoutConfig(MethodConfig):
    """Settings of dropout on attention weights, in training and whenever samples are drawn.

    Attributes:
        p: Probability that a weight is dropped.

    Example:
        >>> McDropoutConfig(p=0.2).is_softmax(sample=False, with_kl=False)
        True
    """

    name: ClassVar[str] = "mc-dropout"

    p: float = 0.1

    def __post_init__(self) -> None:
        """Validates the fields."""
        super().__post_init__()
        if not isinstance(self.p, Real) or not 0 <= self.p < 1:
            raise ConfigError(f"p={self.p!r} is invalid. Give a number from 0 to below 1.")

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """Whether a call is the mean, in which no weight is dropped."""
        return not sample

    def build(self, shape: ChainShape) -> "McDropoutMethod":
        """The method for a chain, without parameters."""
        return McDropoutMethod(self.p)


@dataclass(frozen=True)
class DroppedWeights(PointMass):
    r"""Softmax weights with dropout, $W_j B_j / (1 - p)$, $B_j \sim \mathrm{Bernoulli}(1 - p)$.

    Args:
        scores: The scores of the call.
        p: Probability that a weight is dropped.

    Example:
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> DroppedWeights(scores, p=0.5).relative_std()
        tensor([[[[1., 1.]]]])
    """

    p: float

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """Softmax weights, some of them dropped, the others divided by $1 - p$."""
        weights = self.mean_weights()
        kept = noise_source.uniform(weights.detach()) >= self.p
        return weights * kept / (1 - self.p)

    def weight_relative_std(self) -> Float[Tensor, "batch head query key"]:
        """The same as `relative_std`, since dropped weights are not normalised again."""
        return self.relative_std()

    def at_level(self, level: float) -> "DroppedWeights":
        """The same weights with the dropout rate multiplied by a level."""
        return replace(self, p=min(level * self.p, HIGHEST))

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        r"""$\sqrt{p / (1 - p)}$ for every pair."""
        spread = (self.p / (1 - self.p)) ** 0.5
        return zero_masked(torch.full_like(self.scores.phi, spread), self.scores.mask)


class McDropoutMethod(AttentionMethod):
    """Softmax attention with dropout whenever samples are drawn.

    [Gal & Ghahramani 2016](https://arxiv.org/abs/1506.02142).

    Args:
        p: Probability that a weight is dropped.

    Example:
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> McDropoutMethod(p=0.1)(0, scores, None).mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, step: int, scores: Scores, upward: Any) -> DroppedWeights:
        """The posterior of step `step`."""
        return DroppedWeights(scores, self.p)
