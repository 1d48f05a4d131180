"""Scores of GLUE's tasks, calibration of confidences, and temperature scaling by cross-fitting."""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from babn.evaluation.temperature_scaling import Losses, best_temperatures, nll_losses
from babn.metrics import accuracy, aurc, brier, confidence_and_correct, ece, nll
from babn.metrics.calibration_error import binned_sums, mean_gap
from babn.metrics.checks import Probs
from babn.prediction.result import Prediction

Score: TypeAlias = Callable[[Probs, Tensor], float]
"""A number computed from a prediction, or probabilities, and labels."""

FOLDS = 10
BINS = 10
"""Number of confidence bins, as in the paper."""


def f1(predicted: Int[Tensor, "example"], labels: Int[Tensor, "example"]) -> float:
    r"""F1 score of class 1; 0 if the class is neither predicted nor present.

    $$\frac{2\,tp}{2\,tp + fp + fn}$$
    """
    hits = int(((predicted == 1) & (labels == 1)).sum())
    either = int((predicted == 1).sum() + (labels == 1).sum())
    return 2 * hits / either if either else 0.0


def matthews(predicted: Int[Tensor, "example"], labels: Int[Tensor, "example"]) -> float:
    """Matthews correlation of two classes; 0 if one side is constant."""
    found = pearson(predicted, labels)
    return 0.0 if math.isnan(found) else found


def pearson(x: Real[Tensor, "example"], y: Real[Tensor, "example"]) -> float:
    r"""Pearson correlation; NaN if one side is constant.

    $$\frac{\sum_i (x_i - \bar x)(y_i - \bar y)}
    {\lVert x - \bar x \rVert \lVert y - \bar y \rVert}$$
    """
    x, y = x.double(), y.double()
    if bool((x == x[0]).all()) or bool((y == y[0]).all()):
        return math.nan
    x, y = (each - each.mean() for each in (x, y))
    # Normalised before the product, in which small numbers would underflow.
    return float((x / x.norm() @ (y / y.norm())).clamp(-1, 1))


def spearman(x: Real[Tensor, "example"], y: Real[Tensor, "example"]) -> float:
    """Spearman correlation: the Pearson correlation of ranks, with mean ranks for ties."""
    if bool(x.isnan().any()) or bool(y.isnan().any()):
        return math.nan
    return pearson(ranks(x), ranks(y))


def ranks(x: Real[Tensor, "example"]) -> Float[Tensor, "example"]:
    """Ranks in ascending order, starting at 1; ties have their mean rank."""
    _, group, counts = x.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[group]


def squared_error(x: Real[Tensor, "example"], y: Real[Tensor, "example"]) -> float:
    """Mean squared error."""
    return float((x.double() - y.double()).square().mean())


def _of_classes(function: Callable[[Tensor, Tensor], float]) -> Score:
    """A score of the most probable classes."""
    return lambda p, y: function(_probs(p).argmax(-1), y)


def _of_means(function: Callable[[Tensor, Tensor], float]) -> Score:
    """A score of the means over samples."""
    return lambda p, y: function(_probs(p)[..., 0], y)


def _probs(prediction: Probs) -> Tensor:
    return prediction.probs if isinstance(prediction, Prediction) else prediction


SCORES: dict[str, Score] = {
    "accuracy": accuracy,
    "F1": _of_classes(f1),
    "Matthews": _of_classes(matthews),
    "Pearson": _of_means(pearson),
    "Spearman": _of_means(spearman),
    "MSE": _of_means(squared_error),
}
"""Scores by name."""

CALIBRATION: dict[str, Score] = {
    "NLL": nll,
    "Brier": brier,
    "ECE-10": ece,
    "AURC": lambda p, y: aurc(*confidence_and_correct(p, y)),
}
"""Measures of calibration and of selective prediction, by name."""


def confidence_ece(confidence: Float[Tensor, "example"], right: Float[Tensor, "example"]) -> float:
    """Expected calibration error with 10 bins, where answers may be partly right."""
    return float(mean_gap(binned_sums(confidence, right, BINS)))


def error_auroc(uncertainty: Float[Tensor, "example"], right: Float[Tensor, "example"]) -> float:
    """Probability that a wrong answer is more uncertain than a right one; ties count half.

    NaN if all answers are right, or all are wrong.
    """
    levels, place = uncertainty.unique(return_inverse=True)
    zero = torch.zeros_like(levels)
    good = zero.index_add(0, place, right)
    bad = zero.index_add(0, place, 1 - right)
    pairs = good.sum() * bad.sum()
    below = good.cumsum(0) - good
    return float((bad * (below + good / 2)).sum() / pairs) if pairs > 0 else math.nan


def folds(examples: int) -> Iterator[tuple[Bool[Tensor, "example"], Bool[Tensor, "example"]]]:
    """Yields masks of each fold and of all other examples; nothing for a single example.

    The folds are random, with a fixed seed, because neighbours in a data set are often similar.
    """
    count = min(FOLDS, examples)
    drawn = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    for fold in range(count if count > 1 else 0):
        own = drawn % count == fold
        yield own, ~own


def cross_tempered(prediction: Prediction, labels: Int[Tensor, "example"]) -> Prediction:
    """Scales each fold of the logits by the temperature with the lowest NLL on the other folds.

    A single example is not scaled.
    """
    return with_temperatures(prediction, nll_losses(prediction.sample_logits, labels))


def with_temperatures(prediction: Prediction, losses: Losses) -> Prediction:
    """Scales each fold of the logits by the temperature that is best for the other folds.

    Args:
        prediction: The prediction to scale.
        losses: Loss of each example at a temperature.
    """
    tempered = prediction.sample_logits.clone()
    splits = list(folds(tempered.shape[1]))
    if splits:
        found = best_temperatures(losses, torch.stack([others for _, others in splits]))
        for (own, _), temperature in zip(splits, found, strict=True):
            tempered[:, own] = tempered[:, own] / temperature
    return Prediction(tempered, prediction.activation)
