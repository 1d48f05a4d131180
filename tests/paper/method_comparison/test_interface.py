"""Deterministic models and MC dropout on a tiny problem, and how settings are chosen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import small_problem
from babn import metrics
from babn.prediction.result import Prediction
from babn_paper.method_comparison import SOFTMAX, Deterministic, McDropout, Models
from babn_paper.method_comparison.interface import choose, labels_of
from small_problem import DEVELOPMENT, TEST


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(small_problem.problem())


def test_trained_models_are_kept_in_the_folder(tmp_path: Path) -> None:
    before = Models(small_problem.problem(), tmp_path)
    weights = before.get(SOFTMAX, 0).state_dict()
    small_problem.trained.clear()
    after = Models(small_problem.problem(), tmp_path)
    torch.testing.assert_close(after.get(SOFTMAX, 0).state_dict(), weights)
    assert small_problem.trained == []
    assert after.seconds(SOFTMAX, 0) == before.seconds(SOFTMAX, 0) > 0


@pytest.mark.parametrize(
    "method", [Deterministic("plain"), McDropout("dropout", samples=4, candidates=(0.0, 0.2))]
)
def test_temperature_improves_the_likelihood_of_development_data(
    method: Any, models: Models
) -> None:
    labels = labels_of(DEVELOPMENT)
    plain, scaled = (
        replace(method, temperature=chosen).fit(models, 0).predict(DEVELOPMENT)
        for chosen in (False, True)
    )
    assert metrics.accuracy(plain.probs, labels) > 0.5
    assert metrics.nll(scaled.probs, labels) <= metrics.nll(plain.probs, labels) + 1e-6


def test_noise_changes_the_samples(models: Models) -> None:
    dropout = McDropout("MC dropout", candidates=(0.0, 0.3), samples=4)
    predict = dropout.predictor(models, 0)
    assert predict(0.3, TEST).mutual_information.max() > 1e-3
    torch.testing.assert_close(
        predict(0.0, TEST).probs, Deterministic("plain").fit(models, 0).predict(TEST).probs
    )


def test_choice_keeps_accuracy() -> None:
    """The second setting has the lower NLL and the lower accuracy; the third keeps it."""
    labels = torch.tensor([0, 0, 0, 1])
    right = torch.tensor([[9.0, 0], [9, 0], [9, 0], [9, 0]])
    worse = torch.tensor([[0.1, 0], [0.1, 0], [0, 0.1], [0.1, 0]])
    trials = {0.0: Prediction(right[None]), 1.0: Prediction(worse[None])}
    assert choose(trials.items(), labels, temperature=False) == (0.0, 1.0)
    trials[2.0] = Prediction(right[None] / 5)
    assert choose(trials.items(), labels, temperature=False) == (2.0, 1.0)
