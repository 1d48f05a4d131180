"""The four numbers of the demo's table."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BINS = 10


def accuracy(probs: Float[Tensor, "text label"], labels: Int[Tensor, "text"]) -> float:
    """Share of texts whose most probable class is the right one."""
    return (probs.argmax(-1) == labels).double().mean().item()


def nll(probs: Float[Tensor, "text label"], labels: Int[Tensor, "text"]) -> float:
    """Mean negative log probability of the right class, in nats."""
    right = probs.double().gather(-1, labels[:, None])
    return -right.clamp(min=1e-12).log().mean().item()


def bin_places(confidence: Float[Tensor, "text"]) -> Int[Tensor, "text"]:
    """Which of ten equal bins each confidence falls into; one on an edge into the lower bin."""
    return (confidence * BINS).ceil().long().clamp(1, BINS) - 1


def reliability(
    probs: Float[Tensor, "text label"], labels: Int[Tensor, "text"]
) -> Float[Tensor, "bin 3"]:
    """For each of ten equal bins of confidence: share of texts, mean confidence, accuracy.

    The last two are zero in an empty bin.
    """
    confidence, answer = probs.double().max(-1)
    rows = torch.stack([torch.ones_like(confidence), confidence, (answer == labels).double()], -1)
    sums = rows.new_zeros(BINS, 3).index_add(0, bin_places(confidence), rows)
    counts = sums[:, :1]
    return torch.cat([counts / len(labels), sums[:, 1:] / counts.clamp(min=1)], -1)


def ece(probs: Float[Tensor, "text label"], labels: Int[Tensor, "text"]) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over the bins."""
    share, confidence, right = reliability(probs, labels).unbind(-1)
    return (share * (confidence - right).abs()).sum().item()


def auroc(inside: Float[Tensor, "text"], outside: Float[Tensor, "other"]) -> float:
    """Chance that an outside text scores higher than an inside one; ties count half."""
    gaps = outside.double()[:, None] - inside.double()[None, :]
    return ((gaps > 0).double() + 0.5 * (gaps == 0).double()).mean().item()
