"""Accuracy, log likelihood and Brier score, against scikit-learn."""

import math

import pytest
import torch
from hypothesis import given
from metric_cases import drawn, patient, sampled, seeds, sizes
from sklearn import metrics as reference

from babn import Prediction
from babn.metrics import accuracy, brier, confidence_and_correct, nll

SCORES = [accuracy, nll, brier]


@patient
@given(seeds, sizes)
def test_accuracy_is_that_of_scikit_learn(seed: int, size: int) -> None:
    probs, labels = drawn(seed, size)
    assert accuracy(probs, labels) == pytest.approx(
        reference.accuracy_score(labels, probs.argmax(-1))
    )


@patient
@given(seeds, sizes)
def test_nll_is_that_of_scikit_learn(seed: int, size: int) -> None:
    probs, labels = drawn(seed, size)
    expected = reference.log_loss(labels.numpy(), probs.numpy(), labels=range(5))
    assert nll(probs, labels) == pytest.approx(expected)


@patient
@given(seeds, sizes)
def test_brier_is_that_of_scikit_learn(seed: int, size: int) -> None:
    probs, labels = drawn(seed, size)
    expected = reference.brier_score_loss(
        labels.numpy(), probs.numpy(), labels=list(range(5)), scale_by_half=False
    )
    assert brier(probs, labels) == pytest.approx(expected)


def test_by_hand() -> None:
    probs, labels = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]), torch.tensor([0, 2])
    assert accuracy(probs, labels) == 0.5
    assert nll(probs, labels) == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert brier(probs, labels) == pytest.approx((0.375 + 0.875) / 2)


def test_a_label_of_probability_zero_costs_as_much_as_the_floor() -> None:
    probs = torch.tensor([[1.0, 0.0]])
    assert nll(probs, torch.tensor([1])) == pytest.approx(12 * math.log(10))
    assert brier(probs, torch.tensor([1])) == 2


def test_of_equal_classes_the_first_is_predicted() -> None:
    probs = torch.tensor([[0.2, 0.4, 0.4]])
    assert accuracy(probs, torch.tensor([1])) == 1
    assert accuracy(probs, torch.tensor([2])) == 0


def test_confidence_and_correct() -> None:
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    confidence, correct = confidence_and_correct(probs, torch.tensor([0, 1]))
    assert confidence.tolist() == [0.75, 0.5]
    assert correct.tolist() == [True, False]


@pytest.mark.parametrize("score", SCORES)
def test_a_prediction_is_accepted_for_its_probabilities(score) -> None:
    samples, labels = sampled(0), drawn(0, 50, 4)[1]
    found = Prediction(samples.log())
    assert score(found, labels) == pytest.approx(score(samples.mean(0), labels))


@pytest.mark.parametrize("score", SCORES)
def test_batch_axes_are_joined(score) -> None:
    probs, labels = drawn(0, 12)
    assert score(probs.reshape(3, 4, 5), labels.reshape(3, 4)) == score(probs, labels)
    assert score(probs[0], labels[0]) == score(probs[:1], labels[:1])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_numbers_are_computed_in_float64(score, dtype: torch.dtype) -> None:
    probs, labels = drawn(0)
    rounded = probs.to(dtype)
    assert score(rounded, labels) == score(rounded.double(), labels.int())


@pytest.mark.parametrize("score", SCORES)
def test_coarse_probabilities_need_not_add_up_as_well(score) -> None:
    probs, labels = drawn(0, 500)
    rounded = probs.bfloat16()
    assert (rounded.double().sum(-1) - 1).abs().max() > 2e-3
    assert score(rounded, labels) == pytest.approx(score(probs, labels), rel=1e-2)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_are_not_kept(score) -> None:
    probs, labels = drawn(0)
    assert type(score(probs.requires_grad_(), labels)) is float
