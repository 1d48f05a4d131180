"""PAvPU: a worked example, and scipy's t-test in a plain loop."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import generator, patient, sampled, seeds
from scipy import stats
from torch import Tensor

from babn import Prediction
from babn.metrics import Pavpu, accuracy, pavpu


def labels_for(seed: int, size: int, classes: int) -> Tensor:
    return torch.randint(classes, (size,), generator=generator(seed))


def loop_pavpu(sample_probs: Tensor, labels: Tensor, alpha: float) -> Pavpu:
    counts = [0, 0, 0, 0]
    for rows, label in zip(sample_probs.transpose(0, 1).numpy(), labels.tolist(), strict=True):
        second, first = rows.mean(0).argsort()[-2:]
        p = stats.ttest_ind(rows[:, first], rows[:, second], equal_var=False).pvalue
        counts[2 * (first != label) + (p >= alpha)] += 1
    return Pavpu(*counts)


@patient
@given(seeds, st.integers(2, 12), st.integers(1, 30), st.integers(2, 5), st.floats(0.001, 0.5))
def test_counts_are_those_of_a_loop_with_scipy(
    seed: int, samples: int, size: int, classes: int, alpha: float
) -> None:
    probs, labels = sampled(seed, samples, size, classes), labels_for(seed, size, classes)
    assert pavpu(probs, labels, alpha) == loop_pavpu(probs, labels, alpha)


def test_by_hand() -> None:
    """Two certain predictions, right and wrong, and three uncertain ones, of which one is right."""
    certain = [[0.9, 0.1], [0.8, 0.2], [0.85, 0.15]]
    uncertain = [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]
    samples = torch.tensor([certain, certain, uncertain, uncertain, uncertain]).transpose(0, 1)
    found = pavpu(samples, torch.tensor([0, 1, 0, 1, 1]))
    assert found == Pavpu(1, 1, 1, 2)
    assert float(found) == found.value == pytest.approx(3 / 5)


@pytest.mark.thorough
@patient
@given(seeds)
def test_p_values_are_those_of_the_prediction(seed: int) -> None:
    prediction, labels = Prediction(sampled(seed).log()), labels_for(seed, 50, 4)
    found = pavpu(prediction, labels)
    certain = int((prediction.p_value < 0.05).sum())
    assert found.accurate_certain + found.inaccurate_certain == certain
    right = found.accurate_certain + found.accurate_uncertain
    assert right == round(50 * accuracy(prediction, labels))
    assert found == pavpu(prediction.sample_probs, labels)


@patient
@given(seeds)
def test_a_larger_alpha_makes_more_predictions_certain(seed: int) -> None:
    samples, labels = sampled(seed), labels_for(seed, 50, 4)
    few, many = pavpu(samples, labels, 0.01), pavpu(samples, labels, 0.2)
    assert few.accurate_certain <= many.accurate_certain
    assert few.inaccurate_certain <= many.inaccurate_certain


def test_samples_that_do_not_differ() -> None:
    """Certain if one class is ahead, uncertain in a tie, in which the first class is predicted."""
    samples = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).expand(4, 2, 2)
    assert pavpu(samples, torch.tensor([0, 0])) == Pavpu(1, 1, 0, 0)
    assert pavpu(samples, torch.tensor([1, 1])) == Pavpu(0, 0, 1, 1)


def test_batch_axes_are_joined() -> None:
    samples, labels = sampled(0, examples=12), labels_for(0, 12, 4)
    assert pavpu(samples.reshape(6, 3, 4, 4), labels.reshape(3, 4)) == pavpu(samples, labels)


def test_counts_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Pavpu(1, 2, 3, 4).accurate_certain = 2
