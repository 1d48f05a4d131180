"""The demo's metrics, held against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from babn.demo import metrics

SEEDS = range(5)


def drawn(seed: int, texts: int = 200, labels: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, some of them very sure, and labels that they find more often than not."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(texts, labels, generator=generator)
    answers = torch.randint(labels, (texts,), generator=generator)
    logits[torch.arange(texts), answers] += 2
    return logits.softmax(-1), answers


@pytest.mark.parametrize("seed", SEEDS)
def test_accuracy(seed: int) -> None:
    probs, labels = drawn(seed)
    expected = reference.accuracy_score(labels, probs.argmax(-1))
    assert metrics.accuracy(probs, labels) == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_nll(seed: int) -> None:
    probs, labels = drawn(seed)
    probs = probs.double() / probs.double().sum(-1, keepdim=True)
    expected = reference.log_loss(labels, probs, labels=range(7))
    assert metrics.nll(probs, labels) == pytest.approx(expected)


def test_nll_of_an_impossible_answer_is_finite() -> None:
    probs = torch.tensor([[1.0, 0.0]])
    assert 20 < metrics.nll(probs, torch.tensor([1])) < 40


@pytest.mark.parametrize("seed", SEEDS)
def test_reliability(seed: int) -> None:
    probs, labels = drawn(seed)
    confidence, answers = probs.double().max(-1)
    right, stated = calibration_curve(answers == labels, confidence, n_bins=metrics.BINS)
    bins = metrics.reliability(probs, labels)
    filled = bins[bins[:, 0] > 0]
    assert filled[:, 1].numpy() == pytest.approx(stated)
    assert filled[:, 2].numpy() == pytest.approx(right)
    assert bins[:, 0].sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_ece(seed: int) -> None:
    probs, labels = drawn(seed)
    confidence, answers = probs.double().max(-1)
    edges = np.linspace(0, 1, metrics.BINS + 1)[1:-1]
    places = np.searchsorted(edges, confidence.numpy())
    shares = np.bincount(places, minlength=metrics.BINS)
    right, stated = calibration_curve(answers == labels, confidence, n_bins=metrics.BINS)
    expected = np.sum(shares[shares > 0] * np.abs(right - stated)) / len(labels)
    assert metrics.ece(probs, labels) == pytest.approx(expected)


def test_ece_of_one_and_zero() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert metrics.ece(sure, torch.tensor([0, 0])) == 0
    assert metrics.ece(sure, torch.tensor([0, 1])) == pytest.approx(0.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_auroc_with_ties(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randint(8, (120,), generator=generator).float()
    outside = torch.randint(2, 10, (70,), generator=generator).float()
    truth = torch.cat([torch.zeros(120), torch.ones(70)])
    expected = reference.roc_auc_score(truth, torch.cat([inside, outside]))
    assert metrics.auroc(inside, outside) == pytest.approx(expected)
