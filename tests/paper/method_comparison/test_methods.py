"""Methods of uncertainty on a tiny problem."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import small_problem
from babn import metrics
from babn.errors import ConfigError
from babn.methods import SOFTMAX, Deterministic, McDropout, Method, Models, Variant
from babn.methods.ensembles import Ensemble
from babn.methods.interface import choose, labels_of
from babn.prediction.result import Prediction
from babn_paper.method_comparison.catalogue import GROUPS, find_methods, is_installed, shortened
from small_problem import DEVELOPMENT, OUTSIDE, TEST

QUICK = ("deterministic", "MC dropout", "Laplace", "BABN, not trained", "ensemble", "SNGP", "PVeRA")
"""Methods that the quick tests fit; the thorough ones fit all."""

METHODS = [
    pytest.param(
        shortened(method),
        id=method.name,
        marks=[] if method.name in QUICK else [pytest.mark.thorough],
    )
    for methods in GROUPS.values()
    for method in methods
    if is_installed(method)
]
POST_HOC = [shortened(method) for method in GROUPS["post-hoc"] if is_installed(method)]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(small_problem.problem())


@pytest.mark.parametrize("method", METHODS)
def test_methods_predict_distributions_that_repeat(method: Method, models: Models) -> None:
    fitted, again = method.fit(models, seed=0), method.fit(models, seed=0)
    found = fitted.predict(TEST)
    assert found.sample_logits.shape[1:] == (48, 3)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(48))
    torch.testing.assert_close(again.predict(TEST).probs, found.probs)
    assert fitted.settings == again.settings
    assert len(fitted.predict(OUTSIDE)) == 32
    torch.testing.assert_close(fitted.predict(TEST).sample_logits, found.sample_logits)
    assert fitted.passes >= 1 and fitted.tried >= 1 and fitted.trainings
    assert method.code.strip()


@pytest.mark.thorough
def test_one_training_serves_all_methods_without_their_own(tmp_path: Path) -> None:
    small_problem.trained.clear()
    models = Models(small_problem.problem(), tmp_path)
    for method in POST_HOC:
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


def test_noise_changes_what_samples_say(models: Models) -> None:
    dropout = McDropout("MC dropout", candidates=(0.0, 0.3), samples=4)
    predict = dropout.predictor(models, 0)
    assert predict(0.3, TEST).mutual_information.max() > 1e-3
    torch.testing.assert_close(
        predict(0.0, TEST).probs, Deterministic("plain").fit(models, 0).predict(TEST).probs
    )


def test_members_of_an_ensemble_differ_and_ensembles_share_none(models: Models) -> None:
    plain = Ensemble("ensemble", Deterministic("member"), size=2)
    fitted = plain.fit(models, 0)
    assert [seed for _, seed in fitted.trainings] == [0, 1000]
    found = fitted.predict(TEST)
    assert found.mutual_information.max() > 1e-4
    assert fitted.passes == 2


def test_ensembles_join_members_with_and_without_samples(models: Models) -> None:
    """Members whose tuned noise is zero count as much as the others."""
    found = [Prediction(torch.zeros(1, 2, 3)), Prediction(torch.ones(4, 2, 3))]

    class Fixed(Method):
        name = "fixed"

        def trainings(self, seed: int) -> list[tuple[Variant, int]]:
            return []

        def fit(self, models: Models, seed: int) -> Any:
            member = Deterministic("member").fit(models, 0)
            return replace(member, predict=lambda _: found[bool(seed)])

    joined = Ensemble("joined", Fixed(), size=2).fit(models, 0).predict(TEST)
    assert joined.sample_logits.mean() == 0.5


def test_choice_keeps_accuracy() -> None:
    """The second setting has the lower NLL and the lower accuracy; the third keeps it."""
    labels = torch.tensor([0, 0, 0, 1])
    right = torch.tensor([[9.0, 0], [9, 0], [9, 0], [9, 0]])
    worse = torch.tensor([[0.1, 0], [0.1, 0], [0, 0.1], [0.1, 0]])
    trials = {0.0: Prediction(right[None]), 1.0: Prediction(worse[None])}
    assert choose(trials, labels, temperature=False) == (0.0, 1.0)
    trials[2.0] = Prediction(right[None] / 5)
    assert choose(trials, labels, temperature=False) == (2.0, 1.0)


def test_methods_are_found_by_name_and_by_group() -> None:
    assert [each.name for each in find_methods(["SNGP", "BAM"])] == ["SNGP", "BAM"]
    assert find_methods(["post-hoc"]) == list(GROUPS["post-hoc"])
    with pytest.raises(ConfigError, match="SNGP"):
        find_methods(["SNPG"])
