"""Selective prediction: risk and accuracy when the least confident examples are rejected."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn.metrics.inputs import check_share, scores_and_flags
from babn.metrics.scores import sorted_by_confidence


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve, in float64.

    Attributes:
        coverage: Share of examples that are not rejected: 1/n, 2/n, ..., 1.
        risk: Share of wrong predictions among them.
    """

    coverage: Float[Tensor, "example"]
    risk: Float[Tensor, "example"]


def risk_coverage(
    confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]
) -> RiskCoverage:
    """Risk among the most confident examples, for every number of them.

    For examples with equal confidence the risk is the mean over all of their orders.

    Args:
        confidence: Confidences, such as the largest probabilities.
        correct: Whether the predictions are correct.
    """
    _, right = sorted_by_confidence(*scores_and_flags(confidence, correct))
    covered = torch.arange(1, len(right) + 1, dtype=torch.float64, device=right.device)
    return RiskCoverage(covered / len(right), (1 - right).cumsum(0) / covered)


def aurc(confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]) -> float:
    """Area under the risk-coverage curve: the mean risk over all coverages."""
    return risk_coverage(confidence, correct).risk.mean().item()


def e_aurc(confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]) -> float:
    """Excess area under the risk-coverage curve, from 0.

    The area minus that of the optimal confidence, which ranks every correct prediction above every
    wrong one (Geifman et al. 2019, <https://arxiv.org/abs/1805.08206>).
    """
    area = aurc(confidence, correct)
    return max(area - aurc(correct.double(), correct), 0.0)


def selective_accuracy(
    confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"], coverage: float
) -> float:
    """Accuracy on the fewest most confident examples that reach the coverage."""
    check_share(coverage, "coverage", whole=True)
    curve = risk_coverage(confidence, correct)
    return 1 - curve.risk[(curve.coverage < coverage).sum()].item()
