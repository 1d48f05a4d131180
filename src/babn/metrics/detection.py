"""Telling foreign examples from familiar ones by a score, higher for the more foreign."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.metrics.checks import numbers

Scores = Float[Tensor, "example"]


def auroc(inside: Float[Tensor, "*inside"], outside: Float[Tensor, "*outside"]) -> float:
    """Chance that an outside example scores higher than an inside one; ties count half.

    Args:
        inside: Scores of examples like those of training, such as entropies.
        outside: Scores of foreign examples.
    """
    familiar, foreign = both(inside, outside)
    below = torch.searchsorted(familiar, foreign)
    not_above = torch.searchsorted(familiar, foreign, right=True)
    return (below + not_above).double().mean().item() / (2 * len(familiar))


def fpr95(inside: Float[Tensor, "*inside"], outside: Float[Tensor, "*outside"]) -> float:
    """False positive rate at a true positive rate of 95 %, where outside examples are positive.

    The share of inside examples whose score reaches the highest threshold that at least 95 % of
    the outside examples reach. Papers in which inside examples are positive report another number:
    give negative scores and swap the arguments for it.
    """
    familiar, foreign = both(inside, outside)
    needed = -(-95 * len(foreign) // 100)
    threshold = foreign[len(foreign) - needed]
    return (familiar >= threshold).double().mean().item()


def average_precision(
    inside: Float[Tensor, "*inside"], outside: Float[Tensor, "*outside"]
) -> float:
    r"""Area under the precision-recall curve in steps, where outside examples are positive.

    $$\frac1m \sum_j \frac{\#\{\mathrm{outside} \ge s_j\}}{\#\{\mathrm{all} \ge s_j\}}$$

    over the scores $s_j$ of the $m$ outside examples.
    """
    familiar, foreign = both(inside, outside)
    found = reaching(foreign, foreign).double()
    return (found / (found + reaching(familiar, foreign))).mean().item()


def both(inside: Tensor, outside: Tensor) -> tuple[Scores, Float[Tensor, "other"]]:
    """Both sets of scores, checked and sorted."""
    familiar, foreign = numbers(inside, "inside"), numbers(outside, "outside")
    return familiar.flatten().sort().values, foreign.to(familiar.device).flatten().sort().values


def reaching(scores: Scores, thresholds: Float[Tensor, "other"]) -> Int[Tensor, "other"]:
    """How many of the sorted scores reach each threshold."""
    return len(scores) - torch.searchsorted(scores, thresholds)
