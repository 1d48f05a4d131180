"""Risk and coverage: worked examples, plain loops and properties."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import answered, generator, patient, seeds, sizes

from babn.metrics import aurc, e_aurc, risk_coverage, selective_accuracy

CONFIDENCE = torch.tensor([0.9, 0.6, 0.8, 0.7])
CORRECT = torch.tensor([True, False, False, True])


def loop_risks(confidence: list[float], correct: list[bool]) -> list[float]:
    """Risks in the given order of equal confidences."""
    order = sorted(range(len(correct)), key=lambda i: -confidence[i])
    return [sum(not correct[i] for i in order[:k]) / k for k in range(1, len(order) + 1)]


def test_curve_by_hand() -> None:
    found = risk_coverage(CONFIDENCE, CORRECT)
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert found.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])


def test_areas_by_hand() -> None:
    area, best = (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4, (0 + 0 + 1 / 3 + 1 / 2) / 4
    assert aurc(CONFIDENCE, CORRECT) == pytest.approx(area)
    assert e_aurc(CONFIDENCE, CORRECT) == pytest.approx(area - best)


@patient
@given(seeds, st.integers(1, 6))
def test_risk_is_the_mean_over_all_orders_of_equals(seed: int, size: int) -> None:
    confidence, correct = answered(seed, size, levels=2)
    curves = [
        loop_risks(confidence[list(order)].tolist(), correct[list(order)].tolist())
        for order in permutations(range(size))
    ]
    expected = torch.tensor(curves, dtype=torch.float64).mean(0)
    torch.testing.assert_close(risk_coverage(confidence, correct).risk, expected)


@patient
@given(seeds, sizes)
def test_the_order_of_examples_does_not_matter(seed: int, size: int) -> None:
    confidence, correct = answered(seed, size)
    order = torch.randperm(size, generator=generator(seed))
    found = risk_coverage(confidence[order], correct[order])
    assert torch.equal(found.risk, risk_coverage(confidence, correct).risk)


@patient
@given(seeds, sizes)
def test_the_area_is_between_the_best_and_the_worst(seed: int, size: int) -> None:
    confidence, correct = answered(seed, size)
    best, worst = aurc(correct.double(), correct), aurc(-correct.double(), correct)
    assert best - 1e-12 <= aurc(confidence, correct) <= worst + 1e-12
    assert e_aurc(correct.double(), correct) == 0
    assert e_aurc(confidence, correct) == pytest.approx(aurc(confidence, correct) - best)


@patient
@given(seeds, sizes)
def test_constant_confidence_has_the_overall_risk(seed: int, size: int) -> None:
    correct = answered(seed, size)[1]
    risk = 1 - correct.double().mean().item()
    assert aurc(torch.zeros(size), correct) == pytest.approx(risk)


@patient
@given(seeds, sizes)
def test_full_coverage_gives_the_accuracy(seed: int, size: int) -> None:
    confidence, correct = answered(seed, size)
    found = selective_accuracy(confidence, correct, coverage=1.0)
    assert found == pytest.approx(correct.double().mean().item())


@pytest.mark.parametrize(
    ("coverage", "expected"),
    [(0.01, 1), (0.25, 1), (0.2501, 1 / 2), (0.5, 1 / 2), (0.75, 2 / 3), (0.76, 1 / 2), (1, 1 / 2)],
)
def test_selective_accuracy_by_hand(coverage: float, expected: float) -> None:
    assert selective_accuracy(CONFIDENCE, CORRECT, coverage) == pytest.approx(expected)


@patient
@given(st.integers(1, 300), st.data())
def test_a_coverage_that_is_a_whole_number_of_examples_takes_as_many(
    size: int, data: st.DataObject
) -> None:
    taken = data.draw(st.integers(1, size))
    right = torch.arange(size) < taken
    confidence = -torch.arange(size).double()
    assert selective_accuracy(confidence, right, taken / size) == pytest.approx(1)
    if taken > 1:
        wrong_last = torch.arange(size) < taken - 1
        expected = (taken - 1) / taken
        assert selective_accuracy(confidence, wrong_last, taken / size) == pytest.approx(expected)


def test_batch_axes_are_joined() -> None:
    confidence, correct = answered(0, 24)
    assert aurc(confidence.reshape(4, 6), correct.reshape(4, 6)) == aurc(confidence, correct)
