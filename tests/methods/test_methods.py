"""Methods of uncertainty on a tiny problem."""

from pathlib import Path

import pytest
import small_problem
import torch
from small_problem import DEVELOPMENT, OUTSIDE, TEST

from babn import metrics
from babn.methods import SOFTMAX, Deterministic, McDropout, Method, Models
from babn.methods.interface import choose, labels_of
from babn.prediction.result import Prediction

METHODS: list[Method] = [
    Deterministic("deterministic"),
    Deterministic("deterministic + TS", temperature=True),
    McDropout("MC dropout", samples=4, candidates=(0.0, 0.1, 0.3)),
    McDropout("MC dropout + TS", temperature=True, samples=4, candidates=(0.0, 0.1, 0.3)),
]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(small_problem.problem())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_methods_predict_distributions_that_repeat(method: Method, models: Models) -> None:
    fitted = method.fit(models, seed=0)
    found, again = fitted.predict(TEST), fitted.predict(TEST)
    assert found.sample_logits.shape[1:] == (48, 3)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(48))
    torch.testing.assert_close(found.sample_logits, again.sample_logits, rtol=0, atol=0)
    assert metrics.accuracy(found.probs, labels_of(TEST)) > 0.5
    assert len(fitted.predict(OUTSIDE)) == 32
    assert fitted.passes >= 1 and fitted.tried >= 1 and fitted.trainings
    assert method.code.strip()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_second_fit_gives_the_same(method: Method, models: Models) -> None:
    first, second = method.fit(models, seed=0), method.fit(models, seed=0)
    assert first.settings == second.settings
    torch.testing.assert_close(first.predict(TEST).probs, second.predict(TEST).probs)


def test_one_training_serves_all_methods_without_their_own(tmp_path: Path) -> None:
    small_problem.trained.clear()
    models = Models(small_problem.problem(), tmp_path)
    for method in METHODS:
        method.fit(models, seed=1)
    assert small_problem.trained == [("softmax", 1)]


def test_trained_models_are_kept_in_the_folder(tmp_path: Path) -> None:
    before = Models(small_problem.problem(), tmp_path)
    weights = before.get(SOFTMAX, 0).state_dict()
    small_problem.trained.clear()
    after = Models(small_problem.problem(), tmp_path)
    torch.testing.assert_close(after.get(SOFTMAX, 0).state_dict(), weights)
    assert small_problem.trained == []
    assert after.seconds(SOFTMAX, 0) == before.seconds(SOFTMAX, 0) > 0


def test_temperature_improves_the_likelihood_of_development_data(models: Models) -> None:
    plain, scaled = (method.fit(models, 0).predict(DEVELOPMENT) for method in METHODS[:2])
    labels = labels_of(DEVELOPMENT)
    assert metrics.nll(scaled.probs, labels) <= metrics.nll(plain.probs, labels)


def test_choice_keeps_accuracy() -> None:
    """The second setting has the lower NLL and the lower accuracy; the third keeps it."""
    labels = torch.tensor([0, 0, 0, 1])
    right = torch.tensor([[9.0, 0], [9, 0], [9, 0], [9, 0]])
    worse = torch.tensor([[0.1, 0], [0.1, 0], [0, 0.1], [0.1, 0]])
    trials = {0.0: Prediction(right[None]), 1.0: Prediction(worse[None])}
    assert choose(trials, labels, temperature=False) == (0.0, 1.0)
    trials[2.0] = Prediction(right[None] / 5)
    assert choose(trials, labels, temperature=False) == (2.0, 1.0)
