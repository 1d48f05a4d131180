"""Answers to texts: in order, measured, tempered without looking."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from babn import metrics
from babn.errors import DataError
from babn.evaluation.predictions import Evaluation
from babn.evaluation.temperature_scaling import fit_temperature
from babn.prediction.result import Prediction
from babn_paper.tasks.glue import MRPC, STSB, TASKS
from babn_paper.tasks.scores import cross_tempered, folds
from babn_paper.tasks.text_task import TextPredictions, in_order

LABELS = torch.randint(2, (200,), generator=torch.Generator().manual_seed(0))


def logits(samples: int = 4) -> Tensor:
    """Samples that are right more often than not, and too sure of themselves."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(1, 200, 2, generator=generator)
    noise = noise + 0.3 * torch.randn(samples, 200, 2, generator=generator)
    return 5 * (torch.nn.functional.one_hot(LABELS, 2) + noise)


def in_parts(values: Tensor, *places: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in map(torch.tensor, places):
        yield rows, values[:, rows]


def test_predictions_come_back_in_the_order_of_the_data() -> None:
    values = torch.randn(3, 4, 2)
    assert torch.equal(in_order(in_parts(values, [2, 0], [3, 1]), 4), values)
    half = in_order(in_parts(values.bfloat16(), [2, 0], [3, 1]), 4)
    assert half.dtype == torch.float32


@pytest.mark.parametrize("places", [([0, 1],), ([0, 1, 2, 2],), ([0, 1], [1, 2]), ()])
def test_each_example_is_answered_once(places: tuple[list[int], ...]) -> None:
    with pytest.raises(DataError, match="Give one for each example"):
        in_order(in_parts(torch.randn(1, 3, 2), *places), 3)


def test_measures_are_those_of_the_predictions() -> None:
    prediction = Prediction(logits())
    found = TextPredictions(Evaluation("x", prediction, LABELS), ("accuracy", "F1")).measure()
    answers = metrics.confidence_and_correct(prediction, LABELS)
    expected = {
        "accuracy": metrics.accuracy(prediction, LABELS),
        "NLL": metrics.nll(prediction, LABELS),
        "Brier": metrics.brier(prediction, LABELS),
        "ECE-10": metrics.ece(prediction, LABELS),
        "AURC": metrics.aurc(*answers),
        "PAvPU (p<0.05)": metrics.pavpu(prediction, LABELS).value,
    }
    assert {name: found[name] for name in expected} == expected
    assert found.keys() == {*expected, "F1", "NLL + TS", "ECE-10 + TS"}
    assert found["NLL + TS"] < found["NLL"] and found["ECE-10 + TS"] < found["ECE-10"]


def test_one_answer_each_has_no_certainty_of_samples() -> None:
    found = TextPredictions(Evaluation.of_logits("x", logits()[0], LABELS), ("accuracy",)).measure()
    assert "PAvPU (p<0.05)" not in found and "NLL + TS" in found


def test_no_answer_is_tempered_by_what_it_says() -> None:
    prediction = Prediction(logits())
    before = cross_tempered(prediction, LABELS)
    own, _ = next(folds(len(LABELS)))
    changed = LABELS.clone()
    changed[own] = 1 - changed[own]
    after = cross_tempered(prediction, changed)
    assert torch.equal(before.sample_logits[:, own], after.sample_logits[:, own])
    assert not torch.equal(before.sample_logits[:, ~own], after.sample_logits[:, ~own])
    temperature = fit_temperature(Prediction(logits()[:, ~own]), LABELS[~own])
    torch.testing.assert_close(before.sample_logits[:, own], logits()[:, own] / temperature)


@pytest.mark.parametrize("examples", [0, 1, 2, 9, 10, 11, 57])
def test_every_example_is_in_one_fold(examples: int) -> None:
    found = list(folds(examples))
    assert len(found) == (min(10, examples) if examples > 1 else 0)
    if found:
        assert torch.equal(sum(own.long() for own, _ in found), torch.ones(examples).long())
        assert all(torch.equal(own, ~others) for own, others in found)


def test_a_single_example_keeps_its_answer() -> None:
    prediction = Prediction(logits()[:, :1])
    kept = cross_tempered(prediction, LABELS[:1])
    assert torch.equal(kept.sample_logits, prediction.sample_logits)


def test_numbers_are_measured_and_kept(tmp_path: Path) -> None:
    part = STSB.read("builtin", "dev")
    values = torch.tensor([each.label for each in part.examples])
    noisy = (values + torch.randn(5, len(values))).unsqueeze(-1)
    evaluation = Evaluation("x", Prediction(noisy, "identity"), values)
    predictions = TextPredictions(evaluation, STSB.scores + STSB.further)
    assert predictions.measure().keys() == {"Pearson", "Spearman", "MSE"}
    predictions.save(tmp_path / "new")
    assert STSB.load_predictions(tmp_path / "new").measure() == predictions.measure()


def test_saving_again_replaces(tmp_path: Path) -> None:
    for samples in (2, 3):
        evaluation = Evaluation("x", Prediction(logits(samples)), LABELS)
        TextPredictions(evaluation, ("accuracy",)).save(tmp_path)
    assert len(MRPC.load_predictions(tmp_path).evaluation.prediction.sample_logits) == 3


def test_every_score_of_the_table_is_measured() -> None:
    for task in TASKS.values():
        classes = task.target.head()["num_labels"]
        prediction = Prediction(torch.randn(1, 9, classes), task.target.activation)
        labels = task.target.tensor([0, 1] * 4 + [0])
        judged = TextPredictions(Evaluation("x", prediction, labels), task.scores + task.further)
        assert set(task.scores) <= judged.measure().keys()
