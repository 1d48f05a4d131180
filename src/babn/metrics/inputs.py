"""Probabilities, labels and answers: checked, in float64, one row for each example."""

from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from babn.metrics.checks import described, numbers, refuse
from babn.prediction.predict import Prediction

Probs: TypeAlias = Prediction | Float[Tensor, "*batch label"]
SampleProbs: TypeAlias = Prediction | Float[Tensor, "sample *batch label"]
Labels: TypeAlias = Integer[Tensor, "*batch"]

TOLERANCE = 1e-3
"""How far the sum of probabilities may be from one; further where the dtype is coarser."""

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def examples(
    probs: Probs, labels: Labels
) -> tuple[Float[Tensor, "example label"], Int[Tensor, "example"]]:
    """Probabilities and labels of every example, the batch axes made one."""
    p = distributions(probs, "probs")
    return p.flatten(0, -2) if p.ndim > 1 else p[None], classes(labels, p.shape, p.device)


def sampled_examples(
    sample_probs: SampleProbs, labels: Labels
) -> tuple[Float[Tensor, "sample example label"], Int[Tensor, "example"]]:
    """Samples of probabilities, and labels, of every example."""
    p = distributions(sample_probs, "sample_probs")
    if p.ndim < 2 or len(p) < 2 or p.shape[-1] < 2:
        refuse(
            f"sample_probs has the shape {tuple(p.shape)}",
            "Give at least two samples of at least two classes, samples first.",
        )
    return p.reshape(len(p), -1, p.shape[-1]), classes(labels, p.shape[1:], p.device)


def distributions(
    source: Prediction | Tensor, name: Literal["probs", "sample_probs"]
) -> Float[Tensor, "*shape label"]:
    """Probabilities over classes: those of that name in a prediction, or the tensor itself."""
    values = _of_prediction(source, name) if isinstance(source, Prediction) else source
    p = numbers(values, name)
    _check_probabilities(p, name, max(TOLERANCE, torch.finfo(values.dtype).eps))
    return p


def _of_prediction(prediction: Prediction, name: Literal["probs", "sample_probs"]) -> Tensor:
    if prediction.activation != "softmax":
        refuse(
            f"{name} comes from a prediction with activation={prediction.activation!r}",
            "Give one of a classifier whose classes exclude each other.",
        )
    return prediction.probs if name == "probs" else prediction.sample_probs


def _check_probabilities(p: Tensor, name: str, tolerance: float) -> None:
    sums = p.sum(-1) if p.ndim else p
    worst = sums.flatten()[(sums - 1).abs().argmax()].item()
    if p.min() < 0:
        refuse(f"{name} holds {p.min().item():.6g}", "Give probabilities, for example a softmax.")
    if p.ndim == 0 or not abs(worst - 1) <= tolerance:
        refuse(
            f"{name} adds up to {worst:.6g} over the classes of an example",
            "Give probabilities that add up to 1 over the last axis, for example a softmax.",
        )


def classes(
    labels: Labels, shape: torch.Size, device: torch.device | str
) -> Int[Tensor, "example"]:
    """Labels as class numbers, checked against the shape of the probabilities."""
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        refuse(f"labels is {described(labels)}", "Give class numbers as a tensor of integers.")
    if labels.shape != shape[:-1]:
        refuse(
            f"labels has the shape {tuple(labels.shape)} and the probabilities {tuple(shape)}",
            "Give one label for each example.",
        )
    flat = labels.to(device, torch.long).flatten()
    wrong = flat[(flat < 0) | (flat >= shape[-1])]
    if len(wrong):
        refuse(
            f"labels holds {wrong[0].item()}, and classes run from 0 to {shape[-1] - 1}",
            "Leave out the examples that have no label.",
        )
    return flat


def answers(
    confidence: Float[Tensor, "*batch"],
    correct: Bool[Tensor, "*batch"],
    names: tuple[str, str] = ("confidence", "correct"),
) -> tuple[Float[Tensor, "example"], Float[Tensor, "example"]]:
    """Confidences, and one for a right and zero for a wrong answer."""
    sure = numbers(confidence, names[0])
    if not isinstance(correct, Tensor) or correct.dtype != torch.bool:
        refuse(f"{names[1]} is {described(correct)}", "Give a tensor of booleans.")
    if correct.shape != sure.shape:
        refuse(
            f"{names[1]} has the shape {tuple(correct.shape)} and {names[0]} {tuple(sure.shape)}",
            "Give one of each for every example.",
        )
    return sure.flatten(), correct.to(sure).flatten()
