"""The registry of metrics and one row of a table."""

import pytest
import torch
from metric_cases import drawn, sampled

from babn import Prediction, metrics

NAMES = [
    "accuracy",
    "NLL",
    "Brier",
    "ECE-10",
    "MCE-10",
    "adaptive ECE-10",
    "AURC",
    "PAvPU (p<0.05)",
]


def answers() -> tuple[Prediction, torch.Tensor]:
    return Prediction(sampled(1).log()), drawn(1, 50, 4)[1]


def test_names_and_their_order() -> None:
    assert list(metrics.METRICS) == NAMES


def test_a_row_holds_what_the_functions_give() -> None:
    prediction, labels = answers()
    row = metrics.evaluate(prediction, labels)
    answer = metrics.confidence_and_correct(prediction, labels)
    assert list(row) == NAMES
    assert list(row.values()) == [
        metrics.accuracy(prediction, labels),
        metrics.nll(prediction, labels),
        metrics.brier(prediction, labels),
        metrics.ece(prediction, labels),
        metrics.mce(prediction, labels),
        metrics.adaptive_ece(prediction, labels),
        metrics.aurc(*answer),
        metrics.pavpu(prediction, labels).value,
    ]
    assert all(type(value) is float for value in row.values())


@pytest.mark.parametrize("several", [True, False])
def test_without_samples_there_is_no_pavpu(several: bool) -> None:
    prediction, labels = answers()
    given = prediction.probs if several else Prediction(prediction.sample_logits[:1])
    assert list(metrics.evaluate(given, labels)) == NAMES[:-1]
