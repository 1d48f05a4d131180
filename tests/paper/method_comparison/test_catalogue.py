"""Every method of the catalogue on a tiny problem."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import small_problem
from babn.errors import ConfigError
from babn.prediction.result import Prediction
from babn_paper.method_comparison import Deterministic, Method, Models, Variant
from babn_paper.method_comparison.basic_methods import Ensemble
from babn_paper.method_comparison.method_catalogue import (
    GROUPS,
    find_methods,
    is_installed,
    shortened,
    untuned,
)
from small_problem import OUTSIDE, TEST

QUICK = ("deterministic", "MC dropout", "Laplace", "BABN, not trained", "SNGP", "PVeRA")
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


def test_methods_are_found_by_name_and_by_group() -> None:
    assert [each.name for each in find_methods(["SNGP", "BAM"])] == ["SNGP", "BAM"]
    assert find_methods(["post-hoc"]) == list(GROUPS["post-hoc"])
    with pytest.raises(ConfigError, match="SNGP"):
        find_methods(["SNPG"])


@pytest.mark.parametrize("name", ["MC dropout", "BABN, not trained"])
def test_costs_are_those_of_predictions_with_noise(name: str, models: Models) -> None:
    [method] = find_methods([name])
    fitted = untuned(shortened(method)).fit(models, seed=0)
    assert fitted.passes == 4 and fitted.tried == 1
