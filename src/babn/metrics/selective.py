"""Selective prediction: what is gained by answering only where confidence is high."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn.metrics.checks import check_share
from babn.metrics.inputs import answers
from babn.metrics.ordering import from_the_surest


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve, in float64.

    Attributes:
        coverage: Share of examples that are answered: 1/n, 2/n, ..., 1.
        risk: Share of wrong answers among them.
    """

    coverage: Float[Tensor, "example"]
    risk: Float[Tensor, "example"]


def risk_coverage(
    confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]
) -> RiskCoverage:
    """Risk among the surest examples, for every number of them.

    Where examples with equal confidence could come in any order, the risk is the mean over all
    orders.

    Args:
        confidence: Higher for the surer, such as the largest probability.
        correct: Whether the answers are right.
    """
    _, right = from_the_surest(*answers(confidence, correct))
    answered = torch.arange(1, len(right) + 1, dtype=torch.float64, device=right.device)
    return RiskCoverage(answered / len(right), (1 - right).cumsum(0) / answered)


def aurc(confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]) -> float:
    """Area under the risk-coverage curve: the mean risk over all coverages."""
    return risk_coverage(confidence, correct).risk.mean().item()


def e_aurc(confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"]) -> float:
    """Excess area under the risk-coverage curve (Geifman et al. 2019), from 0.

    The area, less that of the best confidence for these answers: one that puts every right answer
    before every wrong one.
    """
    area = aurc(confidence, correct)
    return max(area - aurc(correct.double(), correct), 0.0)


def selective_accuracy(
    confidence: Float[Tensor, "*batch"], correct: Bool[Tensor, "*batch"], coverage: float
) -> float:
    """Accuracy on the smallest number of surest examples that make up at least the coverage."""
    check_share(coverage, "coverage", whole=True)
    curve = risk_coverage(confidence, correct)
    return 1 - curve.risk[(curve.coverage < coverage).sum()].item()
