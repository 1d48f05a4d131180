"""The last-layer Laplace approximation, and its computation from stored features."""

import sys
from pathlib import Path

import pytest
import torch
from saved_features import load_features, save_features
from torch import nn

import small_problem
from babn.errors import MissingExtraError
from babn.prediction.features import features, find_head
from babn_paper.method_comparison import SOFTMAX, Deterministic, Models
from babn_paper.method_comparison.interface import labels_of
from babn_paper.method_comparison.laplace import LastLayerLaplace, fit_laplace
from small_problem import OUTSIDE, TEST


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(small_problem.problem())


@pytest.fixture(scope="module")
def stored(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "features.safetensors"
    save_features(models, 0, {"test": TEST, "outside": OUTSIDE}, path)
    return path


def test_head_is_the_last_linear_layer() -> None:
    path, head = find_head(small_problem.bert())
    assert path == "classifier" and head.out_features == 3
    alone = nn.Linear(3, 2)
    assert find_head(alone) == ("", alone)


def test_features_give_the_logits(models: Models) -> None:
    model = models.get(SOFTMAX, 0)
    _, head = find_head(model)
    with torch.no_grad():
        logits = head(features(model, TEST, head)[-1])
    expected = Deterministic("plain").fit(models, 0).predict(TEST)
    torch.testing.assert_close(logits, expected.sample_logits[0])


def test_stored_features_are_a_problem_with_the_same_predictions(
    models: Models, stored: Path
) -> None:
    problem, tests = load_features(stored)
    assert list(tests) == ["outside", "test"]
    torch.testing.assert_close(labels_of(tests["test"]), labels_of(TEST))
    found = Deterministic("plain").fit(Models(problem), 0).predict(tests["test"])
    expected = Deterministic("plain").fit(models, 0).predict(TEST)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-2)


def test_missing_package_is_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(MissingExtraError, match=r"babn\[laplace\]"):
        LastLayerLaplace("Laplace").fit(models, 0)


@pytest.mark.slow  # needs laplace-torch
def test_laplace_from_stored_features_is_that_of_the_model(models: Models, stored: Path) -> None:
    problem, tests = load_features(stored)
    method = LastLayerLaplace("Laplace", candidates=(0.0, 1.0), samples=50)
    own = method.predictor(models, 0)(1.0, TEST)
    again = method.predictor(Models(problem), 0)(1.0, tests["test"])
    torch.testing.assert_close(own.probs, again.probs, rtol=0, atol=2e-2)


@pytest.mark.slow  # needs laplace-torch
def test_variance_of_samples_is_that_of_the_kronecker_posterior() -> None:
    """For the weights of a layer on wide data, where the prior hardly matters."""
    torch.manual_seed(0)
    x, last = torch.randn(4000, 4), nn.Linear(4, 2)
    with torch.no_grad():
        labels = torch.distributions.Categorical(logits=last(x)).sample()
    posterior = fit_laplace(last, x, labels)
    posterior.prior_precision = torch.tensor(1e-3)
    drawn = posterior.sample(4000, generator=torch.Generator().manual_seed(0))[:, :8]
    with torch.no_grad():
        p = last(x).softmax(-1)
    spread = (p[:, 0] * p[:, 1]).mean()
    # Differences of the two classes' weights have the variance of logistic regression.
    difference = (drawn[:, :4] - drawn[:, 4:]).var(0)
    torch.testing.assert_close(difference, (1 / (4000 * spread)).expand(4), rtol=0.25, atol=0)
