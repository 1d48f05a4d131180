"""Out-of-distribution detection by a score that is higher for out-of-distribution examples."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.metrics.inputs import numbers

Scores = Float[Tensor, "example"]


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
    the outside examples reach. For the number of papers in which inside examples are positive,
    negate the scores and swap the arguments.
    """
    inner, outer = sorted_scores(inside, outside)
    needed = -(-95 * len(outer) // 100)
    threshold = outer[len(outer) - needed]
    return (inner >= threshold).double().mean().item()


def average_precision(
    inside: Float[Tensor, "*inside"], outside: Float[Tensor, "*outside"]
) -> float:
    r"""Area under the precision-recall step curve, where outside examples are positive.

    $$\frac1m \sum_j \frac{\#\{\mathrm{outside} \ge s_j\}}{\#\{\mathrm{all} \ge s_j\}}$$

    over the scores $s_j$ of the $m$ outside examples.
    """
    inner, outer = sorted_scores(inside, outside)
    found = reaching(outer, outer).double()
    return (found / (found + reaching(inner, outer))).mean().item()


def sorted_scores(inside: Tensor, outside: Tensor) -> tuple[Scores, Float[Tensor, "other"]]:
    """Both sets of scores, validated and sorted."""
    inner, outer = numbers(inside, "inside"), numbers(outside, "outside")
    return inner.flatten().sort().values, outer.to(inner.device).flatten().sort().values


def reaching(scores: Scores, thresholds: Float[Tensor, "other"]) -> Int[Tensor, "other"]:
    """Number of the sorted scores that reach each threshold."""
    return len(scores) - torch.searchsorted(scores, thresholds)
