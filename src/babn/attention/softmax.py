"""Softmax attention, the deterministic baseline."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.inputs import Scores
from babn.attention.masking import normalize
from babn.attention.method import AttentionMethod, ChainShape, MethodConfig
from babn.attention.noise_source import NoiseLike
from babn.attention.posterior import Posterior


@dataclass(frozen=True, kw_only=True)
class SoftmaxConfig(MethodConfig):
    """Settings of softmax attention, which keeps the model's own attention dropout.

    Example:
        >>> SoftmaxConfig().attention_dropout
        True
    """

    name: ClassVar[str] = "softmax"

    attention_dropout: bool = True

    def is_softmax(self, sample: bool, with_kl: bool) -> bool:
        """Whether a call is softmax attention: always."""
        return True

    def build(self, shape: ChainShape) -> "SoftmaxMethod":
        """The method for a chain, without parameters."""
        return SoftmaxMethod()


@dataclass(frozen=True)
class PointMass(Posterior):
    r"""All probability at the softmax weights, $W = \mathrm{softmax}(\Phi)$.

    Args:
        scores: The scores of the call.

    Example:
        >>> posterior = PointMass(Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8)))
        >>> posterior.relative_std()
        tensor([[[[0., 0.]]]])
    """

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


class SoftmaxMethod(AttentionMethod):
    r"""Softmax attention, $W = \mathrm{softmax}(\Phi)$.

    [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762).

    Example:
        >>> scores = Scores(torch.zeros(1, 1, 1, 2), None, torch.zeros(1, 1, 2, 8))
        >>> SoftmaxMethod()(0, scores, None).mean_weights()
        tensor([[[[0.5000, 0.5000]]]])
    """

    def forward(self, step: int, scores: Scores, upward: Any) -> PointMass:
        """The softmax weights, without noise."""
        return PointMass(scores)
