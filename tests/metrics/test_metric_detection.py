"""Out-of-distribution detection, against scikit-learn and comparisons of all pairs."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from metric_cases import generator, patient, scored, seeds, sizes
from sklearn import metrics as reference
from torch import Tensor

from babn.metrics import auroc, fpr95

MEASURES = [auroc, fpr95]


def as_truth(inside: Tensor, outside: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Which are outside, and the scores."""
    truth = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    return truth.numpy(), torch.cat([inside, outside]).numpy()


def all_pairs(inside: Tensor, outside: Tensor) -> float:
    gaps = outside[:, None] - inside
    return ((gaps > 0).double() + 0.5 * (gaps == 0).double()).mean().item()


@patient
@given(seeds, sizes, sizes)
def test_auroc_is_that_of_scikit_learn_and_of_all_pairs(seed: int, n: int, m: int) -> None:
    inside, outside = scored(seed, n, m)
    found = auroc(inside, outside)
    assert found == pytest.approx(reference.roc_auc_score(*as_truth(inside, outside)))
    assert found == pytest.approx(all_pairs(inside, outside))


@patient
@given(seeds, sizes, sizes)
def test_fpr95_is_on_the_curve_of_scikit_learn(seed: int, n: int, m: int) -> None:
    inside, outside = scored(seed, n, m)
    false, true, _ = reference.roc_curve(*as_truth(inside, outside), drop_intermediate=False)
    assert fpr95(inside, outside) == pytest.approx(false[np.argmax(true >= 0.95)])


def test_fpr95_by_hand() -> None:
    """Of twenty outside examples one may be missed, so that 2 is the threshold."""
    outside = torch.arange(1, 21).double()
    assert fpr95(torch.tensor([0.0, 1.5, 1.9, 2.0, 30.0]), outside) == pytest.approx(2 / 5)
    assert fpr95(torch.tensor([0.0, 1.0, 1.9, 2.0, 30.0]), outside[:19]) == pytest.approx(4 / 5)


def test_fpr95_with_the_other_positives() -> None:
    """Of twenty inside examples one may be flagged; then one of four outside passes."""
    inside, outside = torch.arange(1, 21).double(), torch.tensor([19.0, 19.5, 30.0, 40.0])
    assert fpr95(-outside, -inside) == pytest.approx(1 / 4)


@patient
@given(seeds, sizes, sizes)
def test_the_roles_of_inside_and_outside_are_opposite(seed: int, n: int, m: int) -> None:
    inside, outside = scored(seed, n, m)
    assert auroc(inside, outside) + auroc(outside, inside) == pytest.approx(1)
    assert auroc(-outside, -inside) == pytest.approx(auroc(inside, outside))


@patient
@given(seeds, sizes, sizes)
def test_only_the_order_of_scores_matters(seed: int, n: int, m: int) -> None:
    inside, outside = scored(seed, n, m)
    shuffled = inside[torch.randperm(n, generator=generator(seed))]
    for measure in MEASURES:
        expected = measure(inside, outside)
        assert 0 <= expected <= 1
        assert measure(shuffled.exp(), outside.exp()) == pytest.approx(expected)


def test_perfect_and_useless_scores() -> None:
    low, high = torch.zeros(7), torch.ones(9)
    assert auroc(low, high) == 1
    assert fpr95(low, high) == 0
    assert auroc(low, torch.zeros(9)) == 0.5
    assert fpr95(low, torch.zeros(9)) == fpr95(high, low) == 1
    assert auroc(high, low) == 0


@pytest.mark.parametrize("measure", MEASURES)
def test_infinite_scores_and_other_shapes_are_accepted(measure) -> None:
    inside, outside = scored(0, 24, 12)
    expected = measure(inside, outside)
    assert measure(inside.reshape(2, 3, 4), outside.half().reshape(3, 4)) == expected
    assert measure(inside, torch.cat([outside[:11], torch.tensor([torch.inf])])) <= 1


@pytest.mark.parametrize("measure", MEASURES)
def test_a_million_scores_need_no_table_of_all_pairs(measure) -> None:
    inside, outside = torch.randn(500_000), torch.randn(500_000) + 1
    start = time.perf_counter()
    assert 0.5 < measure(inside, outside) < 0.95
    assert time.perf_counter() - start < 10
