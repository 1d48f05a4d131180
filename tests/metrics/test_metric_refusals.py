"""Invalid inputs of metrics are refused with a remedy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from babn import Prediction, metrics
from babn.errors import BabnError, MetricInputError

pytestmark = pytest.mark.usefixtures("as_installed")

PROBS, LABELS = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1])
SAMPLES = PROBS.expand(3, 2, 2)
SURE, RIGHT = torch.tensor([0.75, 0.5]), torch.tensor([True, False])

OF_PROBS: list[Callable[..., Any]] = [
    metrics.accuracy,
    metrics.nll,
    metrics.brier,
    metrics.confidence_and_correct,
    metrics.reliability,
    metrics.ece,
    metrics.mce,
    metrics.adaptive_ece,
]
OF_BINS = OF_PROBS[4:]
OF_SCORES = [metrics.auroc, metrics.fpr95]
OF_ANSWERS = [metrics.risk_coverage, metrics.aurc]


@pytest.mark.parametrize("metric", OF_PROBS)
@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.5]], r"probs is \[\[0.5, 0.5\]\]. Give a tensor"),
        (torch.tensor([[1, 0], [0, 1]]), "probs is a tensor of torch.int64. Give a tensor of fl"),
        (torch.empty(0, 2), r"probs is empty, with the shape \(0, 2\)"),
        (torch.empty(2, 0), "probs is empty"),
        (torch.tensor([[torch.nan, 1.0], [0.5, 0.5]]), "probs holds nan"),
        (torch.tensor([[-0.25, 1.25], [0.5, 0.5]]), "probs holds -0.25. Give probabilities"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.502]]), "probs adds up to 1.002 over the classes"),
        (torch.tensor([[torch.inf, 0.5], [0.5, 0.5]]), "probs adds up to inf"),
        (torch.tensor(1.0), "probs adds up to 1 over"),
        (2 * PROBS.bfloat16(), "probs adds up to 2"),
        (Prediction(PROBS[None], "sigmoid"), "probs comes .* activation='sigmoid'"),
        (Prediction(PROBS[None], "identity"), "probs comes .* activation='identity'"),
    ],
)
def test_probabilities(metric: Callable[..., Any], probs: Any, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        metric(probs, LABELS)


@pytest.mark.parametrize("metric", [*OF_PROBS, metrics.pavpu])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"labels is \[0, 1\]. Give class indices"),
        (torch.tensor([0.0, 1.0]), "labels is a tensor of torch.float32"),
        (torch.tensor([False, True]), "labels is a tensor of torch.bool"),
        (torch.tensor([0]), r"labels has the shape \(1,\) and the probabilities \(2, 2\)"),
        (torch.tensor([[0, 1]]), r"labels has the shape \(1, 2\)"),
        (torch.tensor([0, 2]), "labels holds 2, and classes run from 0 to 1"),
        (torch.tensor([-100, 0]), "labels holds -100, .* Leave out"),
    ],
)
def test_labels(metric: Callable[..., Any], labels: Any, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        metric(SAMPLES if metric is metrics.pavpu else PROBS, labels)


@pytest.mark.parametrize("metric", OF_BINS)
@pytest.mark.parametrize("bins", [0, -1, 2.5, True, "10", None])
def test_bins(metric: Callable[..., Any], bins: Any) -> None:
    with pytest.raises(MetricInputError, match=f"bins={bins!r} is invalid. Give a whole"):
        metric(PROBS, LABELS, bins)


@pytest.mark.parametrize("metric", OF_SCORES)
@pytest.mark.parametrize("name", ["inside", "outside"])
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.5], r"is \[0.5\]. Give a tensor of floats"),
        (torch.tensor([1, 2]), "is a tensor of torch.int64"),
        (torch.empty(0), r"is empty, with the shape \(0,\)"),
        (torch.tensor([0.5, torch.nan]), "holds nan"),
    ],
)
def test_scores(metric: Callable[..., Any], name: str, scores: Any, message: str) -> None:
    arguments = {"inside": SURE, "outside": SURE} | {name: scores}
    with pytest.raises(MetricInputError, match=f"{name} {message}"):
        metric(**arguments)


@pytest.mark.parametrize("metric", OF_ANSWERS)
@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        (torch.empty(0), torch.empty(0, dtype=torch.bool), "confidence is empty"),
        (torch.tensor([0.5, torch.nan]), RIGHT, "confidence holds nan"),
        (RIGHT, RIGHT, "confidence is a tensor of torch.bool"),
        (SURE, [True, False], r"correct is \[True, False\]. Give a tensor of booleans"),
        (SURE, SURE, "correct is a tensor of torch.float32"),
        (SURE, RIGHT[:1], r"correct has the shape \(1,\) and confidence \(2,\)"),
    ],
)
def test_answers(metric: Callable[..., Any], confidence: Any, correct: Any, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        metric(confidence, correct)


@pytest.mark.parametrize("alpha", [0, 1, -0.5, 1.5, float("nan"), None])
def test_alpha(alpha: Any) -> None:
    with pytest.raises(MetricInputError, match=f"alpha={alpha!r} .* above 0 and below 1"):
        metrics.pavpu(SAMPLES, LABELS, alpha)


@pytest.mark.parametrize(
    ("samples", "labels", "message"),
    [
        (SAMPLES[:1], LABELS, r"sample_probs has the shape \(1, 2, 2\). Give at least two samples"),
        (torch.ones(3, 2, 1), LABELS * 0, r"sample_probs has the shape \(3, 2, 1\)"),
        (PROBS[0], LABELS, r"sample_probs has the shape \(2,\)"),
        (2 * SAMPLES, LABELS, "sample_probs adds up to 2"),
        (Prediction(SAMPLES[:1].log()), LABELS, r"sample_probs has the shape \(1, 2, 2\)"),
        (Prediction(SAMPLES, "sigmoid"), LABELS, "sample_probs comes .* activation='sigmoid'"),
    ],
)
def test_samples(samples: Any, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        metrics.pavpu(samples, labels)


def test_sums_may_differ_from_one_by_a_thousandth() -> None:
    assert metrics.accuracy(torch.tensor([[0.5, 0.4995]]), torch.tensor([0])) == 1


def test_errors_can_be_caught_as_those_of_babn_and_as_wrong_values() -> None:
    assert issubclass(MetricInputError, BabnError)
    assert issubclass(MetricInputError, ValueError)
