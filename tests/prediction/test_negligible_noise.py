"""The warning if all samples agree."""

import warnings
from typing import Any

import pytest
from small_prediction import DOUBTFUL, converted, words
from torch import nn

import babn
from babn.errors import BabnWarning

METHODS = {
    "keys": babn.BeliefConfig(),
    "pairs": DOUBTFUL,
    "pairs with a scale": babn.BeliefConfig.pairs(rho=1.0, sigma=0.5, max_length=16),
    "bam": babn.BamConfig(k=2.0),
    "dropped weights": babn.McDropoutConfig(p=0.3),
}
methods = pytest.mark.parametrize("config", METHODS.values(), ids=METHODS)
NEGLIGIBLE = "All samples give nearly the same prediction"


def warned(model: nn.Module, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        babn.predict(model, words(), **settings)
    return [str(each.message) for each in seen if issubclass(each.category, BabnWarning)]


@methods
def test_visible_noise_gives_no_warning(config: babn.MethodConfig) -> None:
    assert warned(converted(config)) == []


def test_negligible_noise_gives_a_warning() -> None:
    model = converted(babn.BeliefConfig())
    babn.set_noise_level(model, 1e-4)
    (message,) = warned(model)
    assert message.startswith(NEGLIGIBLE) and "babn.tune_noise(model, data)" in message


def test_a_temperature_can_make_noise_visible() -> None:
    model = converted(babn.BeliefConfig())
    babn.set_noise_level(model, 1e-4)
    babn.set_temperature(model, 1e-6)
    assert warned(model) == []


def test_without_noise_there_is_no_warning() -> None:
    assert warned(converted(babn.SoftmaxConfig())) == []
    model = converted(babn.BeliefConfig())
    babn.set_noise_level(model, 0.0)
    assert warned(model) == []
    babn.set_noise_level(model, 1e-4)
    assert warned(model, samples=1) == []
    assert warned(model, dropout=True) == []
    assert warned(model) != []


@pytest.mark.parametrize(
    "settings", [{"num_labels": 1}, {"problem_type": "multi_label_classification"}], ids=str
)
def test_outputs_without_classes_give_no_warning(settings: dict[str, Any]) -> None:
    model = converted(babn.BeliefConfig(), **settings)
    babn.set_noise_level(model, 1e-4)
    assert warned(model) == []
