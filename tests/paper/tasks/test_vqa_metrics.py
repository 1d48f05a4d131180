"""Measures of answers that may be right in part, against other implementations."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from babn import metrics
from babn.errors import FormatError
from babn.prediction.result import Prediction
from babn_paper.tasks.encoded import Ragged
from babn_paper.tasks.scores import confidence_ece, error_auroc
from babn_paper.tasks.vqa_data import FeatureNoise, SoftLabels
from babn_paper.tasks.vqa_predictions import (
    KEPT,
    VqaPredictions,
    collected,
    cross_tempered,
    nll,
    pavpu,
)

pytestmark = pytest.mark.thorough


LABELS = SoftLabels(
    Ragged.of([[0], [3, 1], [], [11]]), torch.tensor([1.0, 0.3, 0.6, 0.9]), count=12
)


@given(st.integers(0, 1000))
def test_with_hard_scores_the_measures_are_the_usual_ones(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    right = (torch.rand(60, generator=generator) > 0.4).double()
    doubt = (torch.rand(60, generator=generator, dtype=torch.float64) * 8).round() / 8

    expected = roc_auc_score(1 - right, doubt)
    assert error_auroc(doubt, right) == pytest.approx(expected)
    both = torch.stack([1 - doubt / 2, doubt / 2], -1)  # the first class is the most probable
    wanted = metrics.ece(both, (1 - right).long())
    assert confidence_ece(1 - doubt / 2, right) == pytest.approx(float(wanted))


def test_partly_right_answers_count_in_part() -> None:
    """The result is that of ten copies of each question, whose share of hits is its score."""
    right, doubt = torch.tensor([0.3, 1.0, 0.6, 0.0]), torch.tensor([0.5, 0.1, 0.5, 0.4])
    times = [round(10 * float(s)) for s in right]
    hard = np.concatenate([[1] * n + [0] * (10 - n) for n in times])
    repeated = np.repeat(doubt.numpy(), 10)

    assert error_auroc(doubt.double(), right.double()) == pytest.approx(
        roc_auc_score(1 - hard, repeated)
    )
    certain = (repeated < 0.45).astype(int)
    expected = (hard * certain + (1 - hard) * (1 - certain)).mean()
    p_values = torch.tensor([0.5, 0.01, 0.2, 0.03])
    assert pavpu(p_values, right) == pytest.approx(expected)
    assert np.isnan(error_auroc(doubt, torch.ones(4)))


def test_the_best_temperature_lowers_the_likelihoods_loss() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 400, 3)
    scores = torch.bernoulli(logits[0].sigmoid())
    blunt = Prediction(logits / 3, "sigmoid")
    tempered = cross_tempered(blunt, scores)

    factor = tempered.sample_logits / blunt.sample_logits
    assert factor.mean() == pytest.approx(3, rel=0.3)
    assert nll(tempered, scores) < nll(blunt, scores)


def test_labels_are_dense_only_for_a_batch() -> None:
    found = LABELS.batch(torch.tensor([3, 1, 2]))["labels"]
    expected = torch.zeros(3, 12)
    expected[0, 11], expected[1, 3], expected[1, 1] = 0.9, 0.3, 0.6
    assert torch.equal(found, expected)


def test_what_is_kept_gives_the_same_numbers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    outputs = torch.randn(5, 4, 12)
    rows = torch.tensor([2, 0, 3, 1])
    batches = ((part, outputs[:, part]) for part in rows.split(3))
    kinds = ["number", "yes/no", "number", "number"]
    types = ["how many", "is it", "what number", "how many"]
    answers = collected(batches, LABELS, kinds, types).named("BABN, sampled", 3)
    whole = Prediction(outputs, "sigmoid")

    assert answers.logits.shape == (5, 4, KEPT)
    torch.testing.assert_close(answers.prediction.probs[:, 0], whole.probs.amax(-1))
    torch.testing.assert_close(answers.prediction.p_value, whole.p_value)
    torch.testing.assert_close(answers.information, whole.mutual_information)
    best = whole.probs.argmax(-1)
    dense = LABELS.dense(torch.arange(4))
    found = answers.measure()
    assert found["accuracy"] == pytest.approx(float(dense[torch.arange(4), best].mean()))
    assert found["accuracy (yes/no)"] == pytest.approx(float(dense[1, best[1]]))
    many = dense[torch.arange(4), best][[0, 3]].mean()
    assert found["accuracy [how many]"] == pytest.approx(float(many))
    assert found["questions [how many]"] == 2 and "accuracy [is it]" in found
    assert found["accuracy (one answer for all)"] == pytest.approx(float(dense.mean(0).max()))
    assert found["mean confidence"] == pytest.approx(float(whole.probs.amax(-1).mean()), rel=1e-5)
    information = float(whole.mutual_information.mean())
    assert found["mean mutual information"] == pytest.approx(information, rel=1e-5)

    answers.save(tmp_path)
    again = VqaPredictions.load(tmp_path)
    assert again.measure() == pytest.approx(found, nan_ok=True)
    assert (again.method, again.seed) == ("BABN, sampled", 3)
    assert again.type_names == ["how many", "is it", "what number"]
    (tmp_path / "answers.safetensors").write_bytes(b"no")
    with pytest.raises(FormatError, match="damaged"):
        VqaPredictions.load(tmp_path)


def test_a_right_answer_that_is_ruled_out_costs_likelihood(tmp_path: Path) -> None:
    """Also where it is the least probable of all, and the two most probable ones stay."""
    outputs = torch.linspace(3, -3, 12).expand(1, 4, 12).clone()
    outputs[:, 3, 11] = -30
    answers = collected(iter([(torch.arange(4), outputs)]), LABELS, ["number"] * 4)

    assert answers.answers[0].tolist() == list(range(10))
    assert answers.answers[3].tolist() == [*range(9), 11]
    assert answers.scores[3].tolist() == [0.0] * 9 + [pytest.approx(0.9)]
    labels = LABELS.dense(torch.arange(4)).double()
    whole = F.binary_cross_entropy_with_logits(outputs[0].double(), labels, reduction="none")
    kept = whole.gather(1, answers.answers)
    floored = 0.9 * -math.log(1e-7)  # in place of 0.9 times 30
    expected = (kept.sum() - kept[3, -1] + floored) / 4
    assert nll(answers.prediction, answers.scores) == pytest.approx(float(expected), 1e-5)
    answers.save(tmp_path)
    assert VqaPredictions.load(tmp_path).types is None


@given(st.integers(0, 1000))
def test_right_answers_and_the_two_most_probable_are_always_kept(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, 4, 12, generator=generator)
    answers = collected(iter([(torch.arange(4), outputs)]), LABELS, ["number"] * 4)

    probs = Prediction(outputs, "sigmoid").probs
    for row, right in enumerate(([0], [3, 1], [], [11])):
        kept = answers.answers[row].tolist()
        assert {*right, *probs[row].topk(2).indices.tolist()} <= set(kept)
        assert len(set(kept)) == KEPT
        assert probs[row, kept].tolist() == sorted(probs[row, kept].tolist(), reverse=True)


def test_noise_is_independent_seeded_and_of_its_variance() -> None:
    noise = FeatureNoise(5.0, 30, 100)
    one, other = (noise.batch(rows)["feature_noise"] for rows in torch.tensor([[0, 1], [1, 2]]))

    assert torch.equal(one[1], other[0])
    assert float(one.var()) == pytest.approx(5, rel=0.1)
    assert abs(np.corrcoef(one[0].flatten(), one[1].flatten())[0, 1]) < 0.06
    assert not torch.equal(
        FeatureNoise(5.0, 30, 100, seed=1).batch(torch.tensor([0]))["feature_noise"][0], one[0]
    )
