"""Validates probabilities, labels and scores, and flattens them to one row per example."""

from typing import Any, Literal, NoReturn, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from babn.errors import MetricInputError
from babn.prediction.result import Prediction

Probs: TypeAlias = Prediction | Float[Tensor, "*batch label"]
SampleProbs: TypeAlias = Prediction | Float[Tensor, "sample *batch label"]
Labels: TypeAlias = Integer[Tensor, "*batch"]
Scores: TypeAlias = Float[Tensor, "*batch"]
Flags: TypeAlias = Bool[Tensor, "*batch"]

FlatProbs: TypeAlias = Float[Tensor, "example label"]
FlatSamples: TypeAlias = Float[Tensor, "sample example label"]
FlatLabels: TypeAlias = Int[Tensor, "example"]
Values: TypeAlias = Float[Tensor, "example"]
"""Validated arguments, with all batch axes flattened into one."""

TOLERANCE = 1e-3
"""Largest allowed deviation of a sum of probabilities from 1; larger for coarser dtypes."""

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def examples(probs: Probs, labels: Labels) -> tuple[FlatProbs, FlatLabels]:
    """Probabilities and labels with all batch axes flattened into one."""
    p = distributions(probs, "probs")
    return p.reshape(-1, p.shape[-1]), classes(labels, p.shape, p.device)


def sampled_examples(sample_probs: SampleProbs, labels: Labels) -> tuple[FlatSamples, FlatLabels]:
    """Samples of probabilities, and labels, with all batch axes flattened into one."""
    p = distributions(sample_probs, "sample_probs")
    if p.ndim < 2 or len(p) < 2 or p.shape[-1] < 2:
        fail(
            f"sample_probs has the shape {tuple(p.shape)}",
            "Give at least two samples of at least two classes, samples first.",
        )
    return p.reshape(len(p), -1, p.shape[-1]), classes(labels, p.shape[1:], p.device)


def distributions(
    source: Prediction | Tensor, name: Literal["probs", "sample_probs"]
) -> Float[Tensor, "*shape label"]:
    """Validated probabilities in float64: a tensor, or the attribute `name` of a prediction."""
    if isinstance(source, Prediction) and source.activation != "softmax":
        fail(
            f"{name} comes from a prediction with activation={source.activation!r}",
            "Give one of a classifier whose classes exclude each other.",
        )
    values = getattr(source, name) if isinstance(source, Prediction) else source
    p = numbers(values, name)
    if p.min() < 0:
        fail(f"{name} holds {p.min().item():.6g}", "Give probabilities, for example a softmax.")
    sums = p.sum(-1).flatten()
    worst = sums[(sums - 1).abs().argmax()].item()
    tolerance = max(TOLERANCE, torch.finfo(values.dtype).eps)
    if p.ndim == 0 or not abs(worst - 1) <= tolerance:
        fail(
            f"{name} adds up to {worst:.6g} over the classes of an example",
            "Give probabilities that add up to 1 over the last axis, for example a softmax.",
        )
    return p


def classes(labels: Labels, shape: torch.Size, device: torch.device | str) -> FlatLabels:
    """Labels as flat class indices, validated against the shape of the probabilities."""
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        fail(f"labels is {described(labels)}", "Give class indices as a tensor of integers.")
    if labels.shape != shape[:-1]:
        fail(
            f"labels has the shape {tuple(labels.shape)} and the probabilities {tuple(shape)}",
            "Give one label for each example.",
        )
    flat = labels.to(device, torch.long).flatten()
    wrong = flat[(flat < 0) | (flat >= shape[-1])]
    if len(wrong):
        fail(
            f"labels holds {wrong[0].item()}, and classes run from 0 to {shape[-1] - 1}",
            "Leave out the examples that have no label.",
        )
    return flat


def scores_and_flags(
    scores: Scores, flags: Flags, names: tuple[str, str] = ("confidence", "correct")
) -> tuple[Values, Values]:
    """Flat scores in float64, and their flags as 0 and 1."""
    values = numbers(scores, names[0])
    if not isinstance(flags, Tensor) or flags.dtype != torch.bool:
        fail(f"{names[1]} is {described(flags)}", "Give a tensor of booleans.")
    if flags.shape != values.shape:
        fail(
            f"{names[1]} has the shape {tuple(flags.shape)} and {names[0]} {tuple(values.shape)}",
            "Give one of each for every example.",
        )
    return values.flatten(), flags.to(values).flatten()


def numbers(values: Float[Tensor, "*shape"], name: str) -> Float[Tensor, "*shape"]:
    """The values in float64; raises if there are none or if one is NaN."""
    if not isinstance(values, Tensor) or not values.dtype.is_floating_point:
        fail(f"{name} is {described(values)}", "Give a tensor of floats.")
    if not values.numel():
        fail(f"{name} is empty, with the shape {tuple(values.shape)}", "Give an example or more.")
    if values.isnan().any():
        fail(f"{name} holds nan", "Find out where it comes from; no metric can be computed.")
    return values.detach().double()


def described(value: Any) -> str:
    """Describes an argument of the wrong type, for an error message."""
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)


def fail(problem: str, remedy: str) -> NoReturn:
    """Raises `MetricInputError`."""
    raise MetricInputError(f"{problem}. {remedy}")
