"""Softmax attention: the deterministic rule, as a baseline through the same code."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import normalize
from babn.attention.noise_source import NoiseLike
from babn.attention.rule import AttentionRule, ChainShape, Posterior, RuleConfig


@dataclass(frozen=True, kw_only=True)
class SoftmaxConfig(RuleConfig):
    """Deterministic attention; keeps the model's own attention dropout."""

    rule: ClassVar[str] = "softmax"

    attention_dropout: bool = True

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """Always."""
        return True

    def build(self, shape: ChainShape) -> "SoftmaxRule":
        """The rule, which has no parameters."""
        return SoftmaxRule()


@dataclass(frozen=True)
class PointMass(Posterior):
    """All probability on the softmax weights."""

    scores: Scores

    def mean_weights(self) -> Float[Tensor, "batch head query key"]:
        """The softmax of the scores."""
        return normalize(self.scores.phi, self.scores.mask)

    def sample_weights(self, noise_source: NoiseLike) -> Float[Tensor, "batch head query key"]:
        """The same weights each time."""
        return self.mean_weights()

    def relative_std(self) -> Float[Tensor, "batch head query key"]:
        """Zero."""
        return torch.zeros_like(self.scores.phi)


class SoftmaxRule(AttentionRule):
    r"""$W = \mathrm{softmax}(\Phi)$."""

    def forward(self, step: int, scores: Scores, climbed: Any) -> PointMass:
        """The softmax weights, without noise."""
        return PointMass(scores)
