"""What methods are compared by, with values under questions drawn anew."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn import metrics
from babn.evaluation.answers import Evaluation
from babn.prediction.predict import Prediction

ALPHA = 0.05
"""Below this p-value an answer counts as certain."""

Draws = Int[Tensor, "draw example"]

SAMPLED = f"PAvPU (p<{ALPHA:g})"
OUTSIDE = "outside AUROC"
"""How well entropy tells questions from elsewhere; more is better."""


def right(prediction: Prediction, labels: Int[Tensor, "example"]) -> Float[Tensor, "example"]:
    """One for each right answer, zero for the others."""
    return (prediction.probs.argmax(-1) == labels).double()


def _of_right_class(prediction: Prediction, labels: Tensor) -> Tensor:
    return prediction.probs.double().gather(-1, labels[:, None])[:, 0]


def _brier(prediction: Prediction, labels: Tensor) -> Tensor:
    square = prediction.probs.double().square().sum(-1)
    return square - 2 * _of_right_class(prediction, labels) + 1


def _sure_if_right(prediction: Prediction, labels: Tensor) -> Tensor:
    return ((prediction.p_value < ALPHA) == right(prediction, labels).bool()).double()


def _surprise(prediction: Prediction, labels: Tensor) -> Tensor:
    return -_of_right_class(prediction, labels).clamp(min=1e-12).log()


BY_ANSWER: dict[str, tuple[Callable[[Prediction, Tensor], Tensor], bool]] = {
    "accuracy": (right, True),
    "NLL": (_surprise, False),
    "Brier": (_brier, False),
    SAMPLED: (_sure_if_right, True),
}
"""Means of a number for each answer; and whether more is better."""


def by_all(bins: int) -> dict[str, tuple[Callable[[Tensor, Tensor], float], bool]]:
    """Measures that need all answers at once, from probabilities and labels."""
    return {
        f"ECE-{bins}": (lambda probs, y: metrics.ece(probs, y, bins), False),
        "AURC": (lambda probs, y: metrics.aurc(probs.amax(-1), probs.argmax(-1) == y), False),
    }


def values(
    evaluation: Evaluation, draws: Draws, bins: int, seed: int
) -> dict[str, tuple[Float[Tensor, "draw"], bool]]:
    """Every measure of an evaluation for each draw of questions, and whether more is better."""
    prediction, labels = evaluation.prediction, evaluation.labels
    found = {
        name: (each(prediction, labels).double()[draws].mean(1), more)
        for name, (each, more) in BY_ANSWER.items()
        if name != SAMPLED or len(prediction.sample_logits) > 1
    }
    probs = prediction.probs
    for name, (whole, more) in by_all(bins).items():
        drawn = [whole(probs[draw], labels[draw]) for draw in draws]
        found[name] = torch.tensor(drawn, dtype=torch.float64), more
    if evaluation.outside is not None:
        found[OUTSIDE] = _outside(prediction, evaluation.outside, draws, seed), True
    return found


def draw(size: int, resamples: int, seed: int) -> Draws:
    """Indices of questions: first each once, then drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(size, (resamples, size), generator=generator)
    return torch.cat([torch.arange(size)[None], drawn])


def _outside(
    inside: Prediction, outside: Prediction, draws: Draws, seed: int
) -> Float[Tensor, "draw"]:
    others = draw(len(outside.entropy), len(draws) - 1, seed + 1)
    pairs = zip(draws, others, strict=True)
    drawn = [metrics.auroc(inside.entropy[a], outside.entropy[b]) for a, b in pairs]
    return torch.tensor(drawn, dtype=torch.float64)
