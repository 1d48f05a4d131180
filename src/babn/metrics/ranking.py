"""How well a score ranks examples: out-of-distribution detection and selective prediction.

In detection the score should be higher for out-of-distribution examples. In selective prediction
the examples with the lowest confidence are rejected, and the others should be right.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from babn.metrics.accuracy_nll_brier import sorted_by_confidence
from babn.metrics.checks import Flags, Scores, Values, numbers, scores_and_flags


def auroc(inside: Float[Tensor, "*inside"], outside: Float[Tensor, "*outside"]) -> float:
    """Probability that an outside example scores higher than an inside one; ties count half.

    Args:
        inside: Scores of in-distribution examples, such as entropies.
        outside: Scores of out-of-distribution examples.
    """
    inner, outer = sorted_scores(inside, outside)
    below = torch.searchsorted(inner, outer)
    not_above = torch.searchsorted(inner, outer, right=True)
    return (below + not_above).double().mean().item() / (2 * len(inner))


def fpr95(inside: Float[Tensor, "*inside"], outside: Float[Tensor, "*outside"]) -> float:
    """False positive rate at a true positive rate of 95 %, where outside examples are positive.

    The share of inside examples whose score reaches the highest threshold that at least 95 % of
    the outside examples reach. Some papers take inside examples as positive: to get their number,
    negate the scores and swap the arguments.
    """
    inner, outer = sorted_scores(inside, outside)
    needed = -(-95 * len(outer) // 100)
    threshold = outer[len(outer) - needed]
    return (inner >= threshold).double().mean().item()


def sorted_scores(
    inside: Tensor, outside: Tensor
) -> tuple[Float[Tensor, "inside"], Float[Tensor, "outside"]]:
    """Both sets of scores, validated and sorted."""
    inner, outer = numbers(inside, "inside"), numbers(outside, "outside")
    return inner.flatten().sort().values, outer.to(inner.device).flatten().sort().values


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve, in float64.

    Attributes:
        coverage: Share of examples that are not rejected: 1/n, 2/n, ..., 1.
        risk: Share of wrong predictions among the examples that are not rejected.
    """

    coverage: Values
    risk: Values


def risk_coverage(confidence: Scores, correct: Flags) -> RiskCoverage:
    """Risk among the n most confident examples, for every n.

    Examples with equal confidence count with their mean risk, so that their order does not matter.

    Args:
        confidence: Confidences, such as the largest probabilities.
        correct: Whether the predictions are correct.
    """
    _, right = sorted_by_confidence(*scores_and_flags(confidence, correct))
    covered = torch.arange(1, len(right) + 1, dtype=torch.float64, device=right.device)
    return RiskCoverage(covered / len(right), (1 - right).cumsum(0) / covered)


def aurc(confidence: Scores, correct: Flags) -> float:
    """Area under the risk-coverage curve: the mean risk over all coverages."""
    return risk_coverage(confidence, correct).risk.mean().item()
