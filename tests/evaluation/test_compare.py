"""Comparisons of methods."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from small_evaluations import SIZE, evaluation, labels

import babn
from babn.errors import ConfigError
from babn.evaluation.comparison import compare, draw
from babn.evaluation.predictions import Evaluation
from babn.prediction.result import Prediction
from babn.prediction.t_tests import paired_p_value


def test_numbers_are_those_of_the_metrics() -> None:
    one = evaluation("BABN", samples=5, outside=True)
    found = compare([one], resamples=20).estimates["BABN"]
    probs = one.prediction.probs
    expected = {
        "accuracy": babn.metrics.accuracy(probs, labels()),
        "NLL": babn.metrics.nll(probs, labels()),
        "Brier": babn.metrics.brier(probs, labels()),
        "ECE-10": babn.metrics.ece(probs, labels()),
        "AURC": babn.metrics.aurc(probs.amax(-1), probs.argmax(-1) == labels()),
        "PAvPU (p<0.05)": float(babn.metrics.pavpu(one.prediction.sample_probs, labels())),
        "outside AUROC": babn.metrics.auroc(one.prediction.entropy, one.outside.entropy),
    }
    assert {name: estimate.mean for name, estimate in found.items()} == pytest.approx(expected)


@pytest.mark.slow
def test_intervals_hold_the_normal_approximation() -> None:
    found = compare([evaluation("x")], resamples=2000).estimates["x"]["accuracy"]
    error = math.sqrt(found.mean * (1 - found.mean) / SIZE)
    assert found.low == pytest.approx(found.mean - 1.96 * error, abs=0.008)
    assert found.high == pytest.approx(found.mean + 1.96 * error, abs=0.008)


def test_a_better_method_is_found_and_the_same_one_is_not() -> None:
    strong, weak = evaluation("strong", signal=2.0), evaluation("weak", signal=1.0)
    same = Evaluation("same", weak.prediction, weak.labels)
    found = compare([weak, strong, same], resamples=200)
    assert found.baseline == "weak"
    assert {d.verdict for n, d in found.differences["strong"].items() if n != "ECE-10"} == {
        "better"
    }
    assert {d.verdict for d in found.differences["same"].values()} == {"no clear difference"}
    assert found.differences["same"]["NLL"].value == 0


def test_seeds_are_paired() -> None:
    runs = [evaluation(m, seed, signal=s) for seed in range(4) for m, s in (("a", 1.0), ("b", 1.1))]
    found = compare(runs, "a", resamples=10)
    values = {m: np.array(found.estimates[m]["NLL"].values) for m in "ab"}
    expected = stats.ttest_rel(values["b"], values["a"])
    difference = found.differences["b"]["NLL"]
    assert difference.p_value == pytest.approx(expected.pvalue)
    assert difference.value == pytest.approx((values["b"] - values["a"]).mean())
    assert found.estimates["a"]["NLL"].std == pytest.approx(values["a"].std(ddof=1))


def test_one_seed_has_no_p_value() -> None:
    found = compare([evaluation("a"), evaluation("b", signal=2.0)], resamples=5)
    assert math.isnan(found.differences["b"]["NLL"].p_value)
    assert "p=" not in found.difference_table().markdown()


@pytest.mark.parametrize("pairs", [2, 3, 10, 200])
def test_paired_p_values_are_scipys(pairs: int) -> None:
    gaps = torch.randn(pairs, 7, generator=torch.Generator().manual_seed(0)).double() + 0.3
    expected = stats.ttest_1samp(gaps.numpy(), 0).pvalue
    np.testing.assert_allclose(paired_p_value(gaps).numpy(), expected, rtol=1e-10)


def test_paired_p_values_without_spread() -> None:
    assert paired_p_value(torch.tensor([[0.0, 1.0], [0.0, 1.0]])).tolist() == [1.0, 0.0]
    assert paired_p_value(torch.ones(1, 2)).isnan().all()


def test_draws_are_the_same_for_the_same_seed() -> None:
    assert torch.equal(draw(10, 3, 1), draw(10, 3, 1))
    assert not torch.equal(draw(10, 3, 1), draw(10, 3, 2))
    assert draw(10, 3, 1)[0].tolist() == list(range(10))


def test_what_cannot_be_compared_is_refused() -> None:
    one = evaluation("a")
    with pytest.raises(ConfigError, match="twice"):
        compare([one, one])
    with pytest.raises(ConfigError, match="same examples"):
        compare([one, Evaluation("b", one.prediction, (one.labels + 1) % 3)])
    with pytest.raises(ConfigError, match="baseline='c'"):
        compare([one], "c")
    with pytest.raises(ConfigError, match="evaluations"):
        compare([])
    with pytest.raises(ConfigError, match="level=1"):
        compare([one], level=1.0)
    with pytest.raises(ConfigError, match="resamples=0"):
        compare([one], resamples=0)


def test_samples_of_some_methods_only() -> None:
    found = compare([evaluation("softmax"), evaluation("BABN", samples=3)], resamples=5)
    name = "PAvPU (p<0.05)"
    assert name in found.estimates["BABN"] and name not in found.estimates["softmax"]
    assert name not in found.differences["BABN"]
    assert found.table().rows[0][found.table().columns.index(name)] == "-"


def test_activations_other_than_softmax_are_kept() -> None:
    made = Prediction(evaluation("a").prediction.sample_logits, "sigmoid")
    assert made.tempered(2.0).activation == "sigmoid"


def test_only_clear_differences_are_marked_as_best() -> None:
    weak, close = evaluation("weak"), evaluation("close", scale=1.02)
    same = Evaluation("same", weak.prediction, weak.labels)
    assert compare([weak, same], resamples=100).table().best == frozenset()
    assert compare([weak], resamples=10).table().best == frozenset()
    strong = evaluation("strong", signal=2.0)
    found = compare([weak, strong, close], resamples=100)
    assert found.best["NLL"] == found.best["accuracy"] == "strong"
    assert (1, list(found.directions).index("NLL") + 1) in found.table().best
    twin = Evaluation("twin", strong.prediction, strong.labels)
    assert "NLL" not in compare([weak, strong, twin], resamples=100).best
