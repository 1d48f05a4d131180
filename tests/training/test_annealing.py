"""Schedules of the KL's weight."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_training import BELIEF, bert

import babn
from babn import KLAnnealing
from babn.errors import ConfigError

SCHEDULES = ("constant", "linear", "sigmoid")


def half_way_sigmoid() -> float:
    """The logistic curve from -6 to 6 at -3, stretched to run from 0 to 1."""
    low, at = 1 / (1 + math.exp(6)), 1 / (1 + math.exp(3))
    return (at - low) / (1 - 2 * low)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "constant"}, {0: 0.8, 37: 0.8, 100: 0.8}),
        ({"schedule": "linear", "warmup": 0.5}, {0: 0.0, 25: 0.4, 50: 0.8, 99: 0.8}),
        ({"schedule": "linear", "start": 0.2, "warmup": 1.0}, {0: 0.2, 50: 0.5, 100: 0.8}),
        ({"schedule": "sigmoid", "warmup": 1.0}, {0: 0.0, 25: 0.8 * half_way_sigmoid(), 50: 0.4}),
        ({"schedule": "sigmoid", "warmup": 0.5}, {50: 0.8, 100: 0.8}),
    ],
)
def test_weights_computed_by_hand(settings: dict[str, Any], expected: dict[int, float]) -> None:
    annealing = KLAnnealing(weight=0.8, **settings)
    for step, weight in expected.items():
        assert annealing.at(step, total=100) == pytest.approx(weight, abs=1e-12)


def test_steps_outside_training_take_the_ends() -> None:
    annealing = KLAnnealing(weight=0.8, start=0.2)
    assert annealing.at(-5, 100) == pytest.approx(0.2)
    assert annealing.at(500, 100) == pytest.approx(0.8)
    assert annealing.at(0, 0) == pytest.approx(0.2)


schedules = st.builds(
    KLAnnealing,
    schedule=st.sampled_from(SCHEDULES),
    weight=st.floats(0, 10),
    start=st.floats(0, 10),
    warmup=st.floats(0.01, 1),
)


@given(schedules, st.integers(1, 2000), st.floats(0, 1))
def test_weight_stays_between_start_and_end(
    annealing: KLAnnealing, total: int, where: float
) -> None:
    low, high = sorted((annealing.start, annealing.weight))
    weight = annealing.at(round(where * total), total)
    assert low - 1e-9 <= weight <= high + 1e-9


@given(schedules, st.integers(1, 1000), st.data())
def test_growth_is_monotone(annealing: KLAnnealing, total: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, total - 1))
    change = annealing.at(step + 1, total) - annealing.at(step, total)
    assert change * (annealing.weight - annealing.start) >= -1e-9


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "cosine"},
        {"weight": -0.1},
        {"weight": float("nan")},
        {"weight": float("inf")},
        {"start": -1.0},
        {"start": float("nan")},
        {"warmup": 0.0},
        {"warmup": 1.5},
        {"warmup": float("nan")},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings: dict[str, Any], as_installed: None) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        KLAnnealing(**settings)


def test_without_a_weight_it_is_the_models() -> None:
    model = babn.convert(bert(), replace(BELIEF, kl_weight=0.5))
    annealing = KLAnnealing(warmup=1.0)
    assert annealing.apply(model, step=1, total=4) == pytest.approx(0.125)
    assert annealing.apply(model, step=4, total=4) == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="weight=None"):
        annealing.at(1, 4)


def test_apply_sets_and_returns_the_weight() -> None:
    model = babn.convert(bert(), BELIEF)
    weight = KLAnnealing(weight=1.0, warmup=1.0).apply(model, step=3, total=4)
    assert weight == pytest.approx(0.75)
    assert babn.get_kl_weight(model) == pytest.approx(0.75)
