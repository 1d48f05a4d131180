"""How good answers and their probabilities are: accuracy, log likelihood, Brier score."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.metrics.inputs import Labels, Probs, examples

FLOOR = 1e-12
"""Probabilities below count as this much, so that an impossible answer costs 27.6 nats."""


def accuracy(probs: Probs, labels: Labels) -> float:
    """Share of examples whose most probable class is the right one; of equals, the first counts."""
    return right(*examples(probs, labels)).mean().item()


def nll(probs: Probs, labels: Labels) -> float:
    r"""Mean negative log likelihood in nats.

    $$-\frac1n \sum_i \log \max(p_{i y_i}, 10^{-12})$$
    """
    return surprise(*examples(probs, labels)).mean().item()


def brier(probs: Probs, labels: Labels) -> float:
    r"""Multi-class Brier score, from 0 to 2.

    $$\frac1n \sum_i \sum_c (p_{ic} - [y_i = c])^2$$
    """
    return squared_error(*examples(probs, labels)).mean().item()


def confidence_and_correct(
    probs: Probs, labels: Labels
) -> tuple[Float[Tensor, "example"], Bool[Tensor, "example"]]:
    """Probability of the most probable class, and whether it is the right one."""
    p, y = examples(probs, labels)
    return p.amax(-1), p.argmax(-1) == y


def right(p: Float[Tensor, "example label"], y: Int[Tensor, "example"]) -> Float[Tensor, "example"]:
    """One for each right answer, zero for each wrong one."""
    return (p.argmax(-1) == y).to(p)


def surprise(
    p: Float[Tensor, "example label"], y: Int[Tensor, "example"]
) -> Float[Tensor, "example"]:
    """Negative log probability of each right class."""
    return -p.gather(-1, y[:, None]).squeeze(-1).clamp(min=FLOOR).log()


def squared_error(
    p: Float[Tensor, "example label"], y: Int[Tensor, "example"]
) -> Float[Tensor, "example"]:
    """Squared distance of each row of probabilities from the right class."""
    return (p - torch.nn.functional.one_hot(y, p.shape[-1])).square().sum(-1)
