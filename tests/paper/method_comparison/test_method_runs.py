"""Results of methods: scores, files, resumption and the table."""

import json
from pathlib import Path

import pytest
import torch

import babn
import small_problem
from babn import metrics
from babn.prediction.result import Prediction
from babn_paper.method_comparison import Deterministic, McDropout, Method, Models, WithDistance
from babn_paper.method_comparison.comparison_runs import Result, _of_sets, compare_methods, evaluate
from babn_paper.method_comparison.example_scores import Scores
from babn_paper.method_comparison.interface import labels_of
from babn_paper.method_comparison.interval_table import NEAR, comparison_table
from small_problem import OUTSIDE, TEST

TESTS = {"test": TEST, "outside": OUTSIDE}
METHODS: list[Method] = [
    Deterministic("deterministic"),
    McDropout("MC dropout", samples=4, candidates=(0.0, 0.3)),
]


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(small_problem.problem())


def test_measures_are_those_of_the_metrics(models: Models) -> None:
    fitted = METHODS[0].fit(models, 0)
    found, outside = fitted.predict(TEST), fitted.predict(OUTSIDE)
    measures = Scores.of(found, TEST, outside).measures()
    probs, labels = found.probs, labels_of(TEST)
    wrong = probs.argmax(-1) != labels
    assert measures == pytest.approx(
        {
            "accuracy": metrics.accuracy(probs, labels),
            "NLL": metrics.nll(probs, labels),
            "ECE": metrics.ece(probs, labels),
            "MCE": metrics.mce(probs, labels),
            "error AUROC": metrics.auroc(found.entropy[~wrong], found.entropy[wrong]),
            "outside AUROC": metrics.auroc(found.entropy, outside.entropy),
            "outside FPR95": metrics.fpr95(found.entropy, outside.entropy),
        },
        rel=1e-5,
    )


def test_outside_examples_are_detected_by_the_distance(models: Models, tmp_path: Path) -> None:
    method = WithDistance("deterministic, distance")
    [found] = compare_methods(models, [method], [0], TESTS, tmp_path)
    problem, model = models.problem, models.get(method.variant, 0)
    detector = babn.fit_novelty(model, problem.training, problem.development, progress=False)
    own, others = (detector.distance(model, x, progress=False) for x in (TEST, OUTSIDE))
    assert found.measures["test"]["outside AUROC"] == pytest.approx(metrics.auroc(own, others))
    [plain] = compare_methods(models, [METHODS[0]], [0], TESTS, tmp_path)
    for name in ("accuracy", "NLL", "error AUROC"):
        assert found.measures["test"][name] == plain.measures["test"][name]


def test_conformal_sets_hold_the_right_class() -> None:
    """Drawn from known probabilities, so that sets of two of three classes cover 0.95."""
    torch.manual_seed(0)
    probs = torch.tensor([[0.5, 0.46, 0.04], [0.04, 0.46, 0.5]]).repeat(2000, 1)
    labels = probs.multinomial(1).flatten()
    found = {"test": Prediction(probs.log()[None]), "same": Prediction(probs.log()[None])}
    tests = {name: [{"labels": labels}] for name in found}
    for measured in _of_sets(found, tests).values():
        assert measured["set size"] == 2
        assert measured["coverage"] == pytest.approx(0.96, abs=0.02)
    one = {"test": Prediction(torch.zeros(1, 1, 3))}
    assert _of_sets(one, {"test": [{"labels": torch.tensor([0])}]}) == {}


def test_errors_cannot_be_detected_where_there_are_none() -> None:
    labels = labels_of(TEST)
    sure = Prediction(9.0 * torch.nn.functional.one_hot(labels).float()[None])
    measures = Scores.of(sure, TEST).measures()
    assert list(measures) == ["accuracy", "NLL", "ECE", "MCE"] and measures["accuracy"] == 1


def test_results_hold_settings_and_costs(models: Models) -> None:
    found = evaluate(METHODS[1], models, 0, TESTS)
    cost = found.details["cost"]
    assert cost["training"] == 1 and cost["trainings"] == 1 and cost["lines"] == 6
    assert cost["passes"] in (1, 4) and cost["seconds"] > 0
    assert found.details["tried"] == 2 and "rate" in found.details["settings"]
    assert list(found.measures) == ["test"]


def test_finished_methods_are_not_computed_again(models: Models, tmp_path: Path) -> None:
    first = compare_methods(models, METHODS[:1], [0, 1], TESTS, tmp_path)
    small_problem.trained.clear()
    fresh = Models(small_problem.problem())
    again = compare_methods(fresh, METHODS[:1], [0, 1], TESTS, tmp_path)
    assert small_problem.trained == []
    assert [each.record() for each in again] == [each.record() for each in first]
    assert json.loads((tmp_path / "deterministic-0.json").read_text()) == first[0].record()


def test_an_interrupted_comparison_resumes(models: Models, tmp_path: Path) -> None:
    class Interrupted(Deterministic):
        def fit(self, models: Models, seed: int) -> None:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_methods(models, [METHODS[0], Interrupted("next")], [0], TESTS, tmp_path)
    assert [path.name for path in tmp_path.glob("*.json")] == ["deterministic-0.json"]
    found = compare_methods(models, [METHODS[0], Deterministic("next")], [0], TESTS, tmp_path)
    assert [each.method for each in found] == ["deterministic", "next"]
    assert found[0].measures == found[1].measures


def result(method: str, seed: int, accuracy: float) -> Result:
    """A result whose first examples are wrong."""
    count = 200
    correct = (torch.arange(count) >= round((1 - accuracy) * count)).double()
    nll = torch.where(correct == 1, 0.1, 2.0).double()
    noise = torch.rand(count, generator=torch.Generator().manual_seed(seed)).double()
    scores = Scores(correct, nll, 0.5 + noise / 2, noise, torch.zeros(0).double())
    cost = {"training": 1.0, "passes": 1, "lines": 1, "memory": None}
    details = {"cost": cost, "tried": 3}
    return Result(method, seed, {"test": scores.measures()}, {"test": scores}, details)


def test_table_marks_what_is_within_the_noise() -> None:
    accuracies = {"best": 0.9, "near": 0.895, "far": 0.6}
    found = [result(name, seed, x) for name, x in accuracies.items() for seed in (0, 1)]
    table = comparison_table(found, "test")
    assert list(table.columns[:3]) == ["method", "accuracy", "NLL"]
    assert list(table.columns[-4:]) == ["training", "passes", "lines", "tried"]
    column = {row[0]: row[1] for row in table.rows}
    assert column["best"].startswith("0.900 [0.8")
    assert column["near"].endswith(NEAR) and not column["far"].endswith(NEAR)
    assert (0, 1) in table.best
    assert [row[-1] for row in table.rows] == ["3", "3", "3"]


def test_table_has_a_dash_where_there_is_nothing_to_detect() -> None:
    table = comparison_table([result("perfect", 0, 1.0), result("other", 0, 0.8)], "test")
    place = list(table.columns).index("error AUROC")
    assert table.rows[0][place] == "-" and (1, place) in table.best
    assert "outside AUROC" not in table.columns
