"""Uncertainty of attention in a look-up task whose number of equally good candidates is known."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "benchmarks/lookup.py"
STEPS = 220
lookup = SimpleNamespace(**runpy.run_path(str(SCRIPT)))

Measures = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=[0, 1])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    """The model after a short training, with two seeds."""
    return lookup.trained(request.param, STEPS)


@pytest.fixture(scope="module")
def found(model: torch.nn.Module) -> Measures:
    return lookup.by_count(model)


@pytest.fixture(scope="module")
def before_training() -> Measures:
    return lookup.by_count(lookup.untrained(0))


def column(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows]


def test_sequences_hold_each_key_as_often_as_they_should() -> None:
    generator = torch.Generator().manual_seed(0)
    for candidates, repeats in ((1, 1), (2, 4), (4, 2), (4, 4)):
        seen = lookup.draw(50, candidates, repeats, generator)
        assert seen.candidates.sum(1).eq(candidates).all()
        for keys, values in zip(seen.keys, seen.values, strict=True):
            others = keys[1:][keys[1:] != keys[0]]
            counts = others.unique(return_counts=True)[1].sort(descending=True).values.tolist()
            assert counts == [repeats] + [1] * (8 - candidates - repeats)
            assert len(values[1:].unique()) == 8 and values[1:].min() >= 1
        chosen = torch.where(seen.candidates, seen.values - 1, -1)
        assert (chosen == seen.answer[:, None]).any(1).all()


def test_the_model_looks_at_the_candidates_and_predicts_one_of_their_values(
    model: torch.nn.Module, found: Measures
) -> None:
    assert min(column(found["candidates"], "accuracy")) > 0.95
    assert min(column(found["candidates"], "weight")) > 0.75
    assert (lookup.weight_on_candidates(model, lookup.held_out(1, 1)) > 0.5).any()


def test_a_single_candidate_is_nearly_certain_and_more_are_less_so(found: Measures) -> None:
    one, two, four = column(found["candidates"], "relative_std")
    assert one < 0.1
    assert two > 2 * one and four > 1.3 * two
    one, two, four = column(found["candidates"], "weight_entropy")
    assert one + 0.1 < two < four - 0.2


def test_predictions_are_as_uncertain_as_the_label(found: Measures) -> None:
    one, two, four = column(found["candidates"], "entropy")
    assert one + 0.4 < two < four - 0.2
    one, two, four = column(found["candidates"], "mutual_information")
    assert one < 0.01 and two > 5 * one and four > 1.5 * two


def test_another_key_may_be_repeated_without_effect(found: Measures) -> None:
    for name in ("relative_std", "weight_entropy", "entropy"):
        once, *more = column(found["another key"], name)
        assert all(value == pytest.approx(once, rel=0.35, abs=0.02) for value in more)
    assert max(column(found["another key"], "mutual_information")) < 0.01


def test_the_order_of_the_pairs_does_not_matter(model: torch.nn.Module, found: Measures) -> None:
    for count, before in zip(lookup.COUNTS, found["candidates"], strict=True):
        after = lookup.shuffle_agreement(model, count)
        assert count > 1 or after["correlation"] > 0.9
        for name in ("relative_std", "weight_entropy", "entropy"):
            assert after[name] == pytest.approx(before[name], rel=0.1)


def test_before_training_the_number_of_candidates_does_not_matter(
    before_training: Measures,
) -> None:
    rows = before_training["candidates"]
    assert column(rows, "weight")[0] < 0.2
    spread = column(rows, "relative_std")
    assert spread[0] > 0.3 and spread[2] < 1.25 * spread[0]
    for name in ("weight_entropy", "entropy"):
        values = column(rows, name)
        assert max(values) < 1.03 * min(values)
    assert max(column(rows, "mutual_information")) < 0.003
