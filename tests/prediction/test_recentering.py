"""Samples around the posterior mean's logits, and the warning where they all agree."""

import warnings
from typing import Any

import pytest
import torch
from small_prediction import DOUBTFUL, bert, converted, words
from torch import Tensor, nn
from transformers import BertForQuestionAnswering, BertForTokenClassification

import babn
from babn.errors import BabnWarning

RULES = {
    "keys": babn.BeliefConfig(),
    "pairs": DOUBTFUL,
    "pairs with a scale": babn.BeliefConfig.pairs(rho=1.0, sigma=0.5, max_length=16),
    "bam": babn.BamConfig(k=2.0),
    "dropped weights": babn.McDropoutConfig(p=0.3),
}
rules = pytest.mark.parametrize("config", RULES.values(), ids=RULES)
NEGLIGIBLE = "All samples give nearly the same prediction"


def mean_logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(**words()).logits


def passes(model: nn.Module) -> list[int]:
    """Gets the rows of each pass through the model."""
    rows: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return rows


def warned(model: nn.Module, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        babn.predict(model, words(), **settings)
    return [str(each.message) for each in seen if issubclass(each.category, BabnWarning)]


@rules
def test_classifiers_are_recentered_at_the_posterior_mean(config: babn.RuleConfig) -> None:
    model = converted(config)
    found = babn.predict(model, words()).sample_logits
    torch.testing.assert_close(found.mean(0), mean_logits(model), rtol=1e-4, atol=1e-4)
    drawn = babn.predict(model, words(), recenter=False).sample_logits
    torch.testing.assert_close(found.std(0, correction=0), drawn.std(0), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(drawn.mean(0), found.mean(0), atol=1e-3)
    assert torch.equal(found, babn.predict(model, words(), recenter=True).sample_logits)


def test_recentering_takes_one_more_pass() -> None:
    model = converted()
    rows = passes(model)
    babn.predict(model, words(), samples=5)
    assert rows == [4, 16, 4]
    rows.clear()
    babn.predict(model, words(), samples=5, recenter=False)
    assert rows == [4, 16]


def test_softmax_needs_no_centre() -> None:
    model = converted(babn.SoftmaxConfig())
    rows = passes(model)
    babn.predict(model, words(), samples=5)
    assert rows == [4, 16]


def test_one_sample_is_a_draw() -> None:
    model = converted()
    one, drawn = (babn.predict(model, words(), 1, recenter=on) for on in (None, False))
    assert torch.equal(one.sample_logits, drawn.sample_logits)


def test_tokens_are_recentered_only_when_asked() -> None:
    model = babn.convert(bert(BertForTokenClassification), DOUBTFUL).eval()
    usual, drawn, moved = (
        babn.predict(model, words(), recenter=on).sample_logits for on in (None, False, True)
    )
    assert torch.equal(usual, drawn)
    torch.testing.assert_close(moved.mean(0), mean_logits(model), rtol=1e-4, atol=1e-4)


def test_one_row_of_logits_from_an_output_is_recentered() -> None:
    model = babn.convert(bert(BertForQuestionAnswering, num_labels=2), DOUBTFUL).eval()
    found = babn.predict(model, words(), output=lambda output: output.end_logits).sample_logits
    with torch.no_grad():
        centre = model(**words()).end_logits
    torch.testing.assert_close(found.mean(0), centre, rtol=1e-4, atol=1e-4)


def test_dropout_is_recentered_only_when_asked() -> None:
    model = converted()
    usual, drawn, moved = (
        babn.predict(model, words(), dropout=True, recenter=on).sample_logits
        for on in (None, False, True)
    )
    assert torch.equal(usual, drawn)
    torch.testing.assert_close(moved.mean(0), mean_logits(model), rtol=1e-4, atol=1e-4)


def test_values_of_regression_are_recentered() -> None:
    model = converted(num_labels=1)
    torch.testing.assert_close(
        babn.predict(model, words()).probs, mean_logits(model), rtol=1e-4, atol=1e-4
    )


def test_temperature_divides_what_was_recentered() -> None:
    model = converted()
    one = babn.predict(model, words()).sample_logits
    babn.set_temperature(model, 2.0)
    torch.testing.assert_close(babn.predict(model, words()).sample_logits, one / 2)


def test_memory_changes_no_recentered_sample() -> None:
    model = converted()
    found, expected = (babn.predict(model, words(), memory=size) for size in (0.0, None))
    torch.testing.assert_close(found.sample_logits, expected.sample_logits, rtol=0, atol=1e-4)


@rules
def test_noise_that_shows_is_not_warned_of(config: babn.RuleConfig) -> None:
    assert warned(converted(config)) == []


@pytest.mark.parametrize("recenter", [None, False])
def test_negligible_noise_is_warned_of(recenter: bool | None) -> None:
    model = converted(babn.BeliefConfig())
    babn.set_noise_level(model, 1e-4)
    (message,) = warned(model, recenter=recenter)
    assert message.startswith(NEGLIGIBLE) and "babn.tune_noise(model, data)" in message


def test_nothing_is_warned_of_where_no_noise_is_wanted() -> None:
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
def test_outputs_without_classes_are_not_warned_of(settings: dict[str, Any]) -> None:
    model = converted(babn.BeliefConfig(), **settings)
    babn.set_noise_level(model, 1e-4)
    assert warned(model) == []
