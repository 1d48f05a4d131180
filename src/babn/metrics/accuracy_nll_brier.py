"""Accuracy, negative log likelihood and Brier score."""

import torch
from jaxtyping import Bool
from torch import Tensor

from babn.metrics.checks import FlatLabels, FlatProbs, Labels, Probs, Values, examples

FLOOR = 1e-12
"""Lower bound on probabilities, so that a class of probability zero costs 27.6 nats."""


def accuracy(probs: Probs, labels: Labels) -> float:
    """Share of examples whose most probable class is the label; ties go to the lower class."""
    return correctness(*examples(probs, labels)).mean().item()


def nll(probs: Probs, labels: Labels) -> float:
    r"""Mean negative log likelihood in nats.

    $$-\frac1n \sum_i \log \max(p_{i y_i}, 10^{-12})$$
    """
    return negative_log_probs(*examples(probs, labels)).mean().item()


def brier(probs: Probs, labels: Labels) -> float:
    r"""Multi-class Brier score, from 0 to 2.

    $$\frac1n \sum_i \sum_c (p_{ic} - [y_i = c])^2$$
    """
    return squared_errors(*examples(probs, labels)).mean().item()


def confidence_and_correct(probs: Probs, labels: Labels) -> tuple[Values, Bool[Tensor, "example"]]:
    """Probability of the most probable class, and whether it is the label."""
    p, y = examples(probs, labels)
    return p.amax(-1), correctness(p, y).bool()


def correctness(p: FlatProbs, y: FlatLabels) -> Values:
    """1 for each correct prediction, 0 for each wrong one."""
    return (p.argmax(-1) == y).to(p)


def negative_log_probs(p: FlatProbs, y: FlatLabels) -> Values:
    """Negative log probability of each label."""
    return -p.gather(-1, y[:, None]).squeeze(-1).clamp(min=FLOOR).log()


def squared_errors(p: FlatProbs, y: FlatLabels) -> Values:
    """Squared distance of each row of probabilities from its one-hot label."""
    return (p - torch.nn.functional.one_hot(y, p.shape[-1])).square().sum(-1)


def sorted_by_confidence(confidence: Values, correct: Values) -> tuple[Values, Values]:
    """Both by descending confidence; the correctness of equal confidences is averaged."""
    confidence, order = confidence.sort(descending=True)
    _, group, count = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    total = correct.new_zeros(len(count)).index_add(0, group, correct[order])
    return confidence, (total / count)[group]
