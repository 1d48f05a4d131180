"""Abstention and prediction sets: their guarantees, by simulation and against scipy."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from small_evaluations import evaluation
from torch import Tensor

import babn
from babn import Prediction
from babn.errors import ConfigError, MetricInputError
from babn.evaluation.decisions import conformal_scores, risk_bound
from babn.evaluation.html_report import decision_table, outside_table


def simulated(rows: int, seed: int, classes: int = 4) -> tuple[Prediction, Tensor]:
    """An overconfident classifier: labels are drawn from probabilities flatter than its own."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((0.6 * logits).softmax(-1), 1, generator=generator).flatten()
    return Prediction(logits.unsqueeze(0)), labels


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.001, 0.5))
def test_risk_bound_is_that_of_clopper_and_pearson(errors: int, more: int, failure: float) -> None:
    count = errors + more
    expected = stats.beta.ppf(1 - failure, errors + 1, count - errors)
    assert risk_bound(errors, count, failure) == pytest.approx(expected, abs=1e-8)
    assert risk_bound(count, count, failure) == 1.0


def test_abstention_keeps_its_risk_with_its_confidence() -> None:
    exceeded, coverages = 0, []
    test, labels = simulated(20_000, seed=10_000)
    wrong = test.probs.argmax(-1) != labels
    for seed in range(60):
        found = babn.fit_abstention(*simulated(400, seed), risk=0.35, confidence=0.9)
        answered = found.answers(test)
        coverages.append(float(answered.double().mean()))
        exceeded += bool(answered.any() and wrong[answered].double().mean() > 0.35)
        assert found.risk <= found.risk_bound <= 0.35
    assert exceeded / 60 <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 60)
    assert sum(coverages) / 60 > 0.15  # of about 0.4 if the risks were known


def test_a_coverage_is_met_and_uncertain_examples_are_left_out() -> None:
    found, labels = simulated(500, 0)
    abstention = babn.fit_abstention(found, labels, coverage=0.6, score="confidence")
    answered = abstention.answers(found)
    assert float(answered.double().mean()) == pytest.approx(abstention.coverage) == 0.6
    confidence = found.probs.amax(-1)
    assert confidence[answered].min() >= confidence[~answered].max()
    expected = (found.probs.argmax(-1) != labels)[answered].double().mean()
    assert (
        abstention.risk == pytest.approx(float(expected))
        and abstention.risk < abstention.risk_bound
    )


def test_evaluation_measures_other_data() -> None:
    new, labels = simulated(300, 1)
    abstention = babn.fit_abstention(*simulated(500, 0), coverage=0.6)
    wrong, answered = new.probs.argmax(-1) != labels, new.entropy <= abstention.threshold
    coverage, risk = (float(each.double().mean()) for each in (answered, wrong[answered]))
    assert 0 < risk < 1 and 0 < coverage < 1
    assert abstention.evaluate(new, labels) == pytest.approx({"coverage": coverage, "risk": risk})
    sets = babn.fit_conformal(*simulated(500, 0), coverage=0.9)
    chosen = sets.sets(new).double()
    held, size = float(chosen[torch.arange(300), labels].mean()), float(chosen.sum(-1).mean())
    assert sets.evaluate(new, labels) == pytest.approx({"coverage": held, "size": size})


def test_an_impossible_risk_abstains_from_all() -> None:
    found, labels = simulated(50, 0)
    abstention = babn.fit_abstention(found, labels, risk=0.001)
    assert abstention.coverage == 0 and not abstention.answers(found).any()


def test_equal_uncertainties_are_answered_together() -> None:
    found = Prediction(torch.tensor([[[1.0, 0.0]] * 10]))
    abstention = babn.fit_abstention(found, torch.zeros(10, dtype=torch.long), coverage=0.3)
    assert abstention.coverage == 1.0 and abstention.answers(found).all()


@pytest.mark.parametrize("method", ["split", "adaptive"])
def test_prediction_sets_have_their_coverage(method: str) -> None:
    """The mean over many calibration sets lies between c and c + 1 / (n + 1)."""
    test, labels = simulated(4_000, seed=10_000)
    held = []
    for seed in range(60):
        sets = babn.fit_conformal(*simulated(99, seed), coverage=0.85, method=method).sets(test)
        held.append(float(sets.gather(-1, labels[:, None]).double().mean()))
        assert sets.any(-1).all()
    mean = sum(held) / len(held)
    error = 4 * torch.tensor(held).std() / math.sqrt(len(held))
    assert 0.85 - error <= mean <= 0.85 + 0.05


def test_adaptive_scores_are_probabilities_of_all_classes_up_to_one() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3]])
    expected = torch.tensor([[1.0, 0.5, 0.8]]).double()
    torch.testing.assert_close(conformal_scores(probs, "adaptive"), expected)


def test_few_examples_make_sets_of_all_classes() -> None:
    found, labels = simulated(5, 0)
    assert babn.fit_conformal(found, labels, coverage=0.95).sets(found).all()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "Give one of them"),
        ({"risk": 0.1, "coverage": 0.5}, "Give one of them"),
        ({"risk": 1.5}, r"risk=1\.5"),
        ({"coverage": 0.0}, r"coverage=0\.0"),
        ({"risk": 0.1, "confidence": 1.0}, r"confidence=1\.0"),
        ({"risk": 0.1, "score": "doubt"}, "score='doubt'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    found, labels = simulated(20, 0)
    with pytest.raises(ConfigError, match=words):
        babn.fit_abstention(found, labels, **settings)


def test_predictions_and_labels_are_checked() -> None:
    found, labels = simulated(20, 0)
    with pytest.raises(MetricInputError, match="labels has the shape"):
        babn.fit_conformal(found, labels[:5])
    with pytest.raises(ConfigError, match="Pass the prediction of a classifier"):
        babn.fit_conformal(Prediction(found.sample_logits, "sigmoid"), labels)
    with pytest.raises(ConfigError, match="coverage=2"):
        babn.fit_conformal(found, labels, coverage=2.0)


def test_the_table_of_decisions_meets_risk_and_coverage() -> None:
    runs = [evaluation("sure", seed, scale=1.0, signal=2.5) for seed in range(3)]
    table = decision_table(runs)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    numbers = {name: float(text.split()[0]) for name, text in row.items() if name != "method"}
    assert 0 < numbers["answered"] <= 1 and numbers["risk of answers"] <= 0.05
    for method in ("split", "adaptive"):
        assert numbers[f"{method} sets: coverage"] >= 0.87
        assert 1 <= numbers[f"{method} sets: size"] <= 3


def test_the_table_of_outside_examples_has_every_score() -> None:
    known = evaluation("BABN", samples=4, outside=True)
    table = outside_table([evaluation("softmax", outside=True), known])
    assert table is not None
    row = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert row["softmax"]["AUROC, mutual information"] == "-"
    assert known.outside is not None
    expected = babn.metrics.auroc(known.prediction.entropy, known.outside.entropy)
    assert row["BABN"]["AUROC, entropy"] == f"{expected:.3f}"
    assert outside_table([evaluation("softmax")]) is None
