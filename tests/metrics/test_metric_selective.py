"""Risk and coverage: worked examples, plain loops and properties."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import answered, generator, patient, seeds, sizes

from babn.metrics import aurc, risk_coverage

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


def test_area_by_hand() -> None:
    assert aurc(CONFIDENCE, CORRECT) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


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


@patient
@given(seeds, sizes)
def test_constant_confidence_has_the_overall_risk(seed: int, size: int) -> None:
    correct = answered(seed, size)[1]
    risk = 1 - correct.double().mean().item()
    assert aurc(torch.zeros(size), correct) == pytest.approx(risk)


def test_batch_axes_are_joined() -> None:
    confidence, correct = answered(0, 24)
    assert aurc(confidence.reshape(4, 6), correct.reshape(4, 6)) == aurc(confidence, correct)
