"""Calibration errors: worked examples, other libraries and plain loops as references."""

from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import coarse, drawn, generator, patient, sampled, seeds, sizes
from torch import Tensor
from torchmetrics.classification import MulticlassCalibrationError

from babn import Prediction
from babn.metrics import (
    accuracy,
    adaptive_ece,
    ece,
    mce,
    reliability,
)

ERRORS = [ece, mce, adaptive_ece]
bin_numbers = st.integers(1, 20)


def place(confidence: float, bins: int) -> int:
    """The first bin whose upper edge is not below."""
    return next(b for b in range(bins) if confidence <= (b + 1) / bins or b == bins - 1)


def loop_gap(cells: list[object], confidences: list[float], right: list[bool]) -> float:
    """Mean gap over cells, one example after the other."""
    members = defaultdict(list)
    for cell, confidence, hit in zip(cells, confidences, right, strict=True):
        members[cell].append((confidence, hit))
    gaps = [abs(sum(c for c, _ in rows) - sum(h for _, h in rows)) for rows in members.values()]
    return sum(gaps) / len(right)


def loop_ece(probs: Tensor, labels: Tensor, bins: int) -> float:
    confidences, answers = probs.amax(-1).tolist(), probs.argmax(-1).tolist()
    cells = [place(c, bins) for c in confidences]
    right = [a == y for a, y in zip(answers, labels.tolist(), strict=True)]
    return loop_gap(cells, confidences, right)


def loop_adaptive(probs: Tensor, labels: Tensor, bins: int) -> float:
    """Without ties, in the order of a sort."""
    confidences, right = probs.amax(-1).tolist(), (probs.argmax(-1) == labels).tolist()
    rows = sorted(zip(confidences, right, strict=True), reverse=True)
    cells = [k * bins // len(rows) for k in range(len(rows))]
    return loop_gap(cells, [c for c, _ in rows], [r for _, r in rows])


@patient
@given(seeds, sizes, bin_numbers)
def test_ece_is_that_of_torchmetrics(seed: int, size: int, bins: int) -> None:
    probs, labels = drawn(seed, size)
    reference = MulticlassCalibrationError(num_classes=5, n_bins=bins, norm="l1")
    assert ece(probs, labels, bins) == pytest.approx(reference(probs, labels).item(), abs=1e-6)


@patient
@given(seeds, sizes, bin_numbers)
def test_mce_is_that_of_torchmetrics(seed: int, size: int, bins: int) -> None:
    probs, labels = drawn(seed, size)
    reference = MulticlassCalibrationError(num_classes=5, n_bins=bins, norm="max")
    assert mce(probs, labels, bins) == pytest.approx(reference(probs, labels).item(), abs=1e-6)


@patient
@given(seeds, sizes, bin_numbers)
def test_errors_are_those_of_plain_loops(seed: int, size: int, bins: int) -> None:
    for probs, labels in (drawn(seed, size), coarse(seed, size)):
        assert ece(probs, labels, bins) == pytest.approx(loop_ece(probs, labels, bins))


@patient
@given(seeds, sizes, bin_numbers)
def test_adaptive_ece_is_that_of_a_plain_loop(seed: int, size: int, bins: int) -> None:
    probs, labels = drawn(seed, size)
    assert adaptive_ece(probs, labels, bins) == pytest.approx(loop_adaptive(probs, labels, bins))


def two_classes(confidences: list[float], right: list[bool]) -> tuple[Tensor, Tensor]:
    """Examples that are predicted as class 0."""
    first = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([first, 1 - first], -1), torch.tensor(right).logical_not().long()


def test_ece_by_hand() -> None:
    probs, labels = two_classes([0.61, 0.69, 0.95, 0.97], [True, False, True, True])
    # 0.6 to 0.7: confidence 0.65, accuracy 0.5; 0.9 to 1: 0.96 and 1.
    assert ece(probs, labels) == pytest.approx(0.5 * 0.15 + 0.5 * 0.04)
    assert mce(probs, labels) == pytest.approx(0.15)
    assert ece(probs, labels, bins=1) == pytest.approx(0.805 - 0.75)


def test_adaptive_ece_by_hand() -> None:
    probs, labels = two_classes([0.9, 0.8, 0.7, 0.6], [True, True, True, False])
    assert adaptive_ece(probs, labels, bins=2) == pytest.approx(0.5 * 0.15 + 0.5 * 0.15)


def test_adaptive_ece_splits_ties_evenly() -> None:
    """A bin ends between four equal confidences: both halves get their mean accuracy."""
    for right in ([True, True, False, False], [False, True, False, True]):
        assert adaptive_ece(*two_classes([0.8] * 4, right), bins=2) == pytest.approx(0.3)


def test_one_on_an_edge_falls_into_the_lower_bin() -> None:
    for bins in (10, 100):
        for upper in range(bins // 2 + 1, bins + 1):
            found = reliability(*two_classes([upper / bins], [True]), bins=bins)
            assert found.count.nonzero().item() == upper - 1


def test_reliability_by_hand() -> None:
    probs, labels = two_classes([0.61, 0.69, 0.95], [True, False, True])
    found = reliability(probs, labels, bins=5)
    torch.testing.assert_close(found.edges, torch.tensor([0, 0.2, 0.4, 0.6, 0.8, 1]).double())
    assert found.count.tolist() == [0, 0, 0, 2, 1]
    assert found.confidence.tolist() == pytest.approx([0, 0, 0, 0.65, 0.95])
    assert found.accuracy.tolist() == pytest.approx([0, 0, 0, 0.5, 1])
    assert found.share.tolist() == pytest.approx([0, 0, 0, 2 / 3, 1 / 3])


@patient
@given(seeds, sizes, bin_numbers)
def test_errors_follow_from_reliability(seed: int, size: int, bins: int) -> None:
    probs, labels = coarse(seed, size)
    found = reliability(probs, labels, bins)
    gap = (found.confidence - found.accuracy).abs()
    assert ece(probs, labels, bins) == pytest.approx((found.share * gap).sum().item())
    assert mce(probs, labels, bins) == pytest.approx(gap.max().item())
    assert (found.share * found.accuracy).sum().item() == pytest.approx(accuracy(probs, labels))


@patient
@given(seeds, sizes, bin_numbers)
def test_errors_are_between_zero_and_one(seed: int, size: int, bins: int) -> None:
    for probs, labels in (drawn(seed, size), coarse(seed, size)):
        assert all(0 <= error(probs, labels, bins) <= 1 for error in ERRORS)


@patient
@given(seeds, sizes, bin_numbers)
def test_the_order_of_examples_does_not_matter(seed: int, size: int, bins: int) -> None:
    probs, labels = coarse(seed, size)
    order = torch.randperm(size, generator=generator(seed))
    for error in ERRORS:
        expected = error(probs, labels, bins)
        assert error(probs[order], labels[order], bins) == pytest.approx(expected)


@patient
@given(seeds, sizes, bin_numbers)
def test_finer_groups_have_larger_errors(seed: int, size: int, bins: int) -> None:
    probs, labels = drawn(seed, size)
    overall = abs(probs.amax(-1).mean().item() - accuracy(probs, labels))
    error = ece(probs, labels, bins)
    assert overall <= error + 1e-12
    assert error <= mce(probs, labels, bins) + 1e-12


@pytest.mark.parametrize("error", [ece, adaptive_ece])
def test_labels_drawn_from_the_probabilities_are_calibrated(error) -> None:
    probs = drawn(0, 100_000, 4)[0]
    labels = probs.multinomial(1, generator=generator(1)).squeeze(-1)
    assert error(probs, labels) < 0.01
    assert error(probs, (labels + 1) % 4) > 0.3


def test_sure_and_right_is_calibrated_and_sure_and_wrong_is_not() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    for error in ERRORS:
        assert error(sure, torch.tensor([0, 0])) == 0
        assert error(sure, torch.tensor([1, 1])) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_prediction_is_accepted_for_its_probabilities(error) -> None:
    samples, labels = sampled(0), drawn(0, 50, 4)[1]
    found = error(Prediction(samples.log()), labels)
    assert found == pytest.approx(error(samples.mean(0), labels))


@pytest.mark.parametrize("error", ERRORS)
def test_ten_bins_by_default(error) -> None:
    probs, _ = drawn(3)
    # Too sure above the median and not sure enough below it: a bin in the middle has both.
    confidence, best = probs.max(-1)
    labels = torch.where(confidence > confidence.median(), (best + 1) % probs.shape[-1], best)
    assert error(probs, labels) == error(probs, labels, 10)
    assert error(probs, labels) != pytest.approx(error(probs, labels, 9), rel=1e-3)
