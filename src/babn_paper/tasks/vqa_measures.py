r"""How good answers to questions about images are, where an answer may be right in part.

An answer with the score $s$ counts as right $s$ times and as wrong $1 - s$ times, in every measure;
with scores of 0 and 1 these are the usual measures. Confidence is the probability of the most
probable answer.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from babn.metrics.calibration_error import bin_index, cell_sums, mean_gap
from babn.prediction.predict import Prediction
from babn_paper.tasks.cross_fitting import with_temperatures

BINS = 10
ALPHA = 0.05
"""Bins of confidence, and the p-value below which an answer is certain, as in the paper."""

FLOOR = 1e-7


def measure(
    prediction: Prediction,
    scores: Float[Tensor, "example answer"],
    information: Float[Tensor, "example"],
    kinds: Mapping[str, Bool[Tensor, "example"]],
) -> dict[str, float]:
    """Every number that follows from the answers.

    Args:
        prediction: Some answers to each question, the most probable one first.
        scores: How right each of them is.
        information: Mutual information of samples and answers.
        kinds: The questions of each kind.
    """
    right, confidence = scores[:, 0].double(), prediction.probs[:, 0].double()
    found = {"accuracy": float(right.mean())}
    if len(kinds) > 1:
        found |= {f"accuracy ({name})": float(right[own].mean()) for name, own in kinds.items()}
    found |= {
        "mean confidence": float(confidence.mean()),
        "NLL": likelihood(prediction, scores),
        "ECE-10": ece(confidence, right),
        "error AUROC (confidence)": error_auroc(1 - confidence, right),
    }
    if len(prediction.sample_logits) > 1:
        found["mean mutual information"] = float(information.double().mean())
        found["error AUROC (mutual information)"] = error_auroc(information.double(), right)
        found["PAvPU (p<0.05)"] = pavpu(prediction.p_value, right)
    tempered = cross_tempered(prediction, scores)
    found["NLL + TS"] = likelihood(tempered, scores)
    found["ECE-10 + TS"] = ece(tempered.probs[:, 0].double(), right)
    return found


def likelihood(prediction: Prediction, scores: Float[Tensor, "example answer"]) -> float:
    """Mean over examples of the negative log likelihood of their kept answers, in nats."""
    return float(likelihoods(prediction, scores).mean())


def likelihoods(
    prediction: Prediction, scores: Float[Tensor, "example answer"]
) -> Float[Tensor, "example"]:
    """Negative log likelihoods of each example's kept answers, in nats."""
    p = prediction.probs.double().clamp(FLOOR, 1 - FLOOR)
    y = scores.double()
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum(-1)


def ece(confidence: Float[Tensor, "example"], right: Float[Tensor, "example"]) -> float:
    """Expected calibration error in ten bins of equal width."""
    return float(mean_gap(cell_sums(bin_index(confidence, BINS), confidence, right, BINS)))


def pavpu(p_value: Float[Tensor, "example"], right: Float[Tensor, "example"]) -> float:
    """Share of answers that are right and certain, or wrong and uncertain."""
    certain = (p_value < ALPHA).double()
    return float((right * certain + (1 - right) * (1 - certain)).mean())


def error_auroc(doubt: Float[Tensor, "example"], right: Float[Tensor, "example"]) -> float:
    """Chance that a wrong answer is doubted more than a right one; ties count half.

    NaN where all answers are right, or all wrong.
    """
    levels, place = doubt.unique(return_inverse=True)
    zero = torch.zeros_like(levels)
    good = zero.index_add(0, place, right)
    bad = zero.index_add(0, place, 1 - right)
    pairs = good.sum() * bad.sum()
    below = good.cumsum(0) - good
    return float((bad * (below + good / 2)).sum() / pairs) if pairs > 0 else math.nan


def cross_tempered(prediction: Prediction, scores: Float[Tensor, "example answer"]) -> Prediction:
    """Answers divided by temperatures that have not seen them, fitted on the other nine tenths."""
    return with_temperatures(prediction, lambda t: likelihoods(prediction.tempered(t), scores))
