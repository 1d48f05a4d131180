"""Calibration errors from sums over bins of confidence: ECE, MCE, adaptive ECE and reliability."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.errors import MetricInputError
from babn.metrics.accuracy_nll_brier import correctness, sorted_by_confidence
from babn.metrics.checks import FlatLabels, FlatProbs, Labels, Probs, Values, examples
from babn.validation import check_count

Sums = Float[Tensor, "*cell 3"]
"""For each bin: number of examples, sum of their confidences, number of correct ones."""


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy in equal-width bins of the confidence, in float64.

    Attributes:
        edges: Bin edges from 0 to 1; a confidence on an edge belongs to the lower bin.
        count: Number of examples in each bin.
        confidence: Mean probability of the most probable class; 0 in an empty bin.
        accuracy: Share of correct predictions; 0 in an empty bin.
    """

    edges: Float[Tensor, "edge"]
    count: Float[Tensor, "bin"]
    confidence: Float[Tensor, "bin"]
    accuracy: Float[Tensor, "bin"]

    @property
    def share(self) -> Float[Tensor, "bin"]:
        """Share of all examples that fall into each bin."""
        return self.count / self.count.sum()


def reliability(probs: Probs, labels: Labels, bins: int = 10) -> Reliability:
    """Confidence and accuracy in equal-width bins, as a reliability diagram shows them."""
    p, y = examples(probs, labels)
    count, confidence, correct = confidence_sums(p, y, bins).unbind(-1)
    filled = count.clamp(min=1)
    return Reliability(bin_edges(bins, p.device), count, confidence / filled, correct / filled)


def ece(probs: Probs, labels: Labels, bins: int = 10) -> float:
    r"""Expected calibration error over equal-width bins of the confidence, from 0 to 1.

    $$\sum_b \frac{n_b}{n} |\mathrm{acc}_b - \mathrm{conf}_b|$$
    """
    return mean_gap(confidence_sums(*examples(probs, labels), bins)).item()


def mce(probs: Probs, labels: Labels, bins: int = 10) -> float:
    r"""Maximum calibration error, $\max_b |\mathrm{acc}_b - \mathrm{conf}_b|$ over filled bins."""
    return largest_gap(confidence_sums(*examples(probs, labels), bins)).item()


def adaptive_ece(probs: Probs, labels: Labels, bins: int = 10) -> float:
    """Expected calibration error over bins that hold equally many examples.

    The k-th most confident of n examples, counted from 0, is in bin floor(k bins / n). Examples
    with equal confidence count with their mean accuracy, so that their order does not matter. From
    Nguyen and O'Connor (2015, <https://arxiv.org/abs/1508.05154>), applied to the confidence.
    """
    check_count("bins", bins, MetricInputError)
    p, y = examples(probs, labels)
    confidence, correct = sorted_by_confidence(p.amax(-1), correctness(p, y))
    cell = torch.arange(len(correct), device=correct.device) * bins // len(correct)
    return mean_gap(cell_sums(cell, confidence, correct, bins)).item()


def confidence_sums(p: FlatProbs, y: FlatLabels, bins: int) -> Sums:
    """Sums over equal-width bins of the confidence in the most probable class."""
    return binned_sums(p.amax(-1), correctness(p, y), bins)


def binned_sums(confidence: Values, correct: Values, bins: int) -> Sums:
    """Sums over equal-width bins, from confidences and correctness (0 or 1)."""
    inner_edges = bin_edges(bins, confidence.device)[1:-1]
    return cell_sums(torch.bucketize(confidence, inner_edges), confidence, correct, bins)


def cell_sums(
    cell: Int[Tensor, "example"], confidence: Values, correct: Values, cells: int
) -> Sums:
    """Sums over the examples in each bin."""
    rows = torch.stack([torch.ones_like(confidence), confidence, correct], -1)
    return rows.new_zeros(cells, 3).index_add(0, cell, rows)


def bin_edges(bins: int, device: torch.device | str) -> Float[Tensor, "edge"]:
    """Edges of equal-width bins, from 0 to 1."""
    check_count("bins", bins, MetricInputError)
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


def mean_gap(sums: Sums) -> Float[Tensor, ""]:
    """Mean gap between confidence and accuracy over bins, weighted by their number of examples."""
    count, confidence, correct = sums.unbind(-1)
    return (confidence - correct).abs().sum() / count.sum()


def largest_gap(sums: Sums) -> Float[Tensor, ""]:
    """Gap between confidence and accuracy in the worst bin."""
    count, confidence, correct = sums.unbind(-1)
    return ((confidence - correct).abs() / count.clamp(min=1)).amax()
