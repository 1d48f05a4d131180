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
    "classwise ECE-10",
    "top-label ECE-10",
    "AURC",
    "E-AURC",
    "PAvPU (p<0.05)",
]


def answers() -> tuple[Prediction, torch.Tensor]:
    return Prediction(sampled(1).log()), drawn(1, 50, 4)[1]


def test_names_and_their_order() -> None:
    assert list(metrics.METRICS) == NAMES


def test_names_carry_the_settings() -> None:
    found = metrics.metrics_for(bins=15, alpha=0.01)
    assert {"ECE-15", "classwise ECE-15", "PAvPU (p<0.01)"} < set(found)
    assert len(found) == len(NAMES)


def test_direction_of_each_metric() -> None:
    higher = {name for name, metric in metrics.METRICS.items() if not metric.lower_is_better}
    assert higher == {"accuracy", "PAvPU (p<0.05)"}


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
        metrics.classwise_ece(prediction, labels),
        metrics.top_label_ece(prediction, labels),
        metrics.aurc(*answer),
        metrics.e_aurc(*answer),
        metrics.pavpu(prediction, labels).value,
    ]
    assert all(type(value) is float for value in row.values())


def test_settings_reach_the_functions() -> None:
    prediction, labels = answers()
    row = metrics.evaluate(prediction, labels, bins=3)
    assert row["ECE-3"] == metrics.ece(prediction, labels, bins=3)
    strict = metrics.metrics_for(alpha=0.001)["PAvPU (p<0.001)"]
    assert strict.function(prediction, labels) == metrics.pavpu(prediction, labels, 0.001)
    assert strict.needs_samples


@pytest.mark.parametrize("several", [True, False])
def test_without_samples_there_is_no_pavpu(several: bool) -> None:
    prediction, labels = answers()
    given = prediction.probs if several else Prediction(prediction.sample_logits[:1])
    assert list(metrics.evaluate(given, labels)) == NAMES[:-1]
