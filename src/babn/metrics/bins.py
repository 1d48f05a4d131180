"""Sums over bins of confidence, which add up over batches and processes."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.metrics.ordering import from_the_surest

Sums = Float[Tensor, "*cell 3"]
"""For each bin: number of examples, sum of their confidences, number of right ones."""


def confidence_sums(
    p: Float[Tensor, "example label"], y: Int[Tensor, "example"], bins: int
) -> Float[Tensor, "bin 3"]:
    """Sums over equal-width bins of the confidence in the most probable class."""
    confidence, answer = p.max(-1)
    return cell_sums(places(confidence, bins), confidence, (answer == y).to(p), bins)


def class_sums(
    p: Float[Tensor, "example label"], y: Int[Tensor, "example"], bins: int
) -> Float[Tensor, "label bin 3"]:
    """For each class, sums over equal-width bins of its probability."""
    # One class at a time, so that memory for thousands of classes is that for one.
    return torch.stack(
        [cell_sums(places(q, bins), q, (y == c).to(q), bins) for c, q in enumerate(p.unbind(-1))]
    )


def top_label_sums(
    p: Float[Tensor, "example label"], y: Int[Tensor, "example"], bins: int
) -> Float[Tensor, "label bin 3"]:
    """For each predicted class, sums over equal-width bins of the confidence in it."""
    confidence, answer = p.max(-1)
    cell = answer * bins + places(confidence, bins)
    sums = cell_sums(cell, confidence, (answer == y).to(p), p.shape[-1] * bins)
    return sums.unflatten(0, (-1, bins))


def equal_mass_sums(
    confidence: Float[Tensor, "example"], correct: Float[Tensor, "example"], bins: int
) -> Float[Tensor, "bin 3"]:
    """Sums over bins of equally many examples: the k-th surest of n is in bin floor(k bins / n)."""
    confidence, correct = from_the_surest(confidence, correct)
    cell = torch.arange(len(correct), device=correct.device) * bins // len(correct)
    return cell_sums(cell, confidence, correct, bins)


def cell_sums(
    cell: Int[Tensor, "example"],
    confidence: Float[Tensor, "example"],
    correct: Float[Tensor, "example"],
    cells: int,
) -> Float[Tensor, "cell 3"]:
    """Sums over the examples in each cell."""
    rows = torch.stack([torch.ones_like(confidence), confidence, correct], -1)
    return rows.new_zeros(cells, 3).index_add(0, cell, rows)


def edges(bins: int, device: torch.device | str) -> Float[Tensor, "edge"]:
    """Where equal-width bins begin and end, from 0 to 1."""
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def places(confidence: Float[Tensor, "example"], bins: int) -> Int[Tensor, "example"]:
    """Which equal-width bin each confidence falls into; one on an edge into the lower bin."""
    return torch.bucketize(confidence.contiguous(), edges(bins, confidence.device)[1:-1])


def mean_gap(sums: Sums) -> Float[Tensor, ""]:
    """Gap between confidence and accuracy, mean over bins weighted by their examples."""
    count, confidence, correct = sums.unbind(-1)
    return (confidence - correct).abs().sum() / count.sum()


def largest_gap(sums: Sums) -> Float[Tensor, ""]:
    """Gap between confidence and accuracy in the worst bin."""
    count, confidence, correct = sums.unbind(-1)
    return ((confidence - correct).abs() / count.clamp(min=1)).amax()
