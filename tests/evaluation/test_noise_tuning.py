"""Fitting the noise level to development data."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import babn
from babn.errors import ConfigError
from babn.prediction.regression import mixture_nll

PER_KEY = babn.BeliefConfig()


def overconfident() -> tuple[BertForSequenceClassification, dict[str, Tensor]]:
    """A random classifier with large logits, and labels of which it predicts two thirds."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        num_labels=3,
        initializer_range=0.5,
    )
    model = babn.convert(BertForSequenceClassification(config), PER_KEY).eval()
    ids = torch.randint(3, 40, (60, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(input_ids=ids).logits.argmax(-1)
    labels[::3] = (labels[::3] + 1) % 3
    return model, {"input_ids": ids, "labels": labels}


def nll(model: BertForSequenceClassification, data: dict[str, Tensor]) -> float:
    probs = babn.predict(model, data, samples=20).probs  # as `tune_noise`
    return float(-probs.gather(-1, data["labels"][:, None]).log().mean())


def test_nll_on_development_data_falls() -> None:
    model, data = overconfident()
    babn.set_noise_level(model, 0.0)
    before = nll(model, data)
    found = babn.tune_noise(model, data, max_accuracy_drop=1.0, progress=False)
    assert found.level == babn.get_noise_level(model) > 0
    assert nll(model, data) == pytest.approx(found.chosen.nll, rel=1e-5)
    assert found.chosen.nll < 0.9 * before
    assert found.chosen.nll == min(trial.nll for trial in found.trials)
    assert str(found).count("chosen") == 1


def test_the_temperature_is_fitted_at_every_level() -> None:
    model, data = overconfident()
    babn.set_temperature(model, 0.5)
    found = babn.tune_noise(model, data, max_accuracy_drop=1.0, progress=False)
    assert found.chosen.temperature == pytest.approx(babn.get_temperature(model))
    for trial in (found.trials[0], found.chosen):
        babn.set_noise_level(model, trial.level)
        babn.set_temperature(model, 1.0)
        plain = babn.predict(model, data, samples=20 if trial.level else 1)
        expected = babn.fit_temperature(plain, data["labels"])
        assert trial.temperature == pytest.approx(expected, rel=1e-3)
    assert found.chosen.nll <= found.trials[0].nll


def test_without_a_temperature_that_of_the_model_stays() -> None:
    model, data = overconfident()
    babn.set_temperature(model, 2.0)
    found = babn.tune_noise(model, data, temperature=False, samples=4, progress=False)
    assert {trial.temperature for trial in found.trials} == {2.0}
    assert babn.get_temperature(model) == 2.0


def test_accuracy_stays_within_what_is_allowed() -> None:
    model, data = overconfident()
    found = babn.tune_noise(model, data, max_accuracy_drop=0.02, progress=False)
    assert found.chosen.accuracy >= found.trials[0].accuracy - 0.02
    assert found.trials[0].level == 0 and found.chosen.nll <= found.trials[0].nll


def test_a_model_that_is_right_and_sure_gets_no_noise() -> None:
    model, data = overconfident()
    with torch.no_grad():
        data["labels"] = model(input_ids=data["input_ids"]).logits.argmax(-1)
    found = babn.tune_noise(model, data, progress=False)
    assert found.level == babn.get_noise_level(model) == 0
    assert found.chosen.temperature == babn.get_temperature(model) == 1


@pytest.mark.thorough
def test_batches_labels_apart_and_seeds_give_the_same() -> None:
    model, data = overconfident()
    halves = [{k: v[i : i + 30] for k, v in data.items()} for i in (0, 30)]
    by_batches = [babn.tune_noise(model, halves, samples=4, progress=False) for _ in range(2)]
    assert by_batches[0] == by_batches[1]
    whole = babn.tune_noise(model, data, samples=4, progress=False)
    inputs = {"input_ids": data["input_ids"]}
    assert babn.tune_noise(model, inputs, data["labels"], samples=4, progress=False) == whole


def test_language_models_are_fitted_to_their_tokens() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ends, initializer_range=0.3))
    babn.convert(model, PER_KEY).eval()
    babn.set_temperature(model, 2.0)
    ids = torch.randint(3, 40, (6, 12), generator=torch.Generator().manual_seed(1))
    seen = torch.ones_like(ids)
    seen[0, 8:] = 0
    found = babn.tune_noise(
        model, [{"input_ids": ids, "attention_mask": seen}], samples=4, progress=False
    )
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1]
    chosen = (logits / 2.0).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    expected = -float(chosen[seen[:, 1:] == 1].mean())
    assert found.trials[0].nll == pytest.approx(expected, rel=1e-5)
    assert found.trials[0].accuracy is None and found.chosen.nll <= expected
    assert babn.get_temperature(model) == 2.0


def test_an_interruption_leaves_the_level_as_it_was(monkeypatch) -> None:
    model, data = overconfident()
    babn.set_noise_level(model, 0.3)
    babn.set_temperature(model, 2.0)
    calls = []

    def stop(*args, **kwargs):
        calls.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr("babn.evaluation.noise_tuning.predict", stop)
    with pytest.raises(KeyboardInterrupt):
        babn.tune_noise(model, data, progress=False)
    assert calls and babn.get_noise_level(model) == 0.3
    assert babn.get_temperature(model) == 2.0


@pytest.mark.parametrize(
    ("data", "settings", "match"),
    [
        ([], {}, "data="),
        ([{"x": torch.zeros(2, 3)}], {}, "labels"),
        (None, {"samples": 0}, "samples=0"),
        (None, {"max_accuracy_drop": -1}, "max_accuracy_drop=-1"),
    ],
)
def test_bad_arguments_are_refused(data, settings, match) -> None:
    model, good = overconfident()
    with pytest.raises(babn.errors.BabnError, match=match):
        babn.tune_noise(model, good if data is None else data, progress=False, **settings)
    assert babn.get_noise_level(model) == 1


def of_numbers(examples: int) -> tuple[Any, Tensor]:
    """A random regression model and its inputs."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(
        vocab_size=40, intermediate_size=32, num_labels=1, initializer_range=0.5, **sizes
    )
    model = babn.convert(BertForSequenceClassification(config), PER_KEY).eval()
    babn.set_noise_level(model, 1.0)
    ids = torch.randint(3, 40, (examples, 9), generator=torch.Generator().manual_seed(1))
    return model, ids


def test_regression_is_tuned_by_the_density_of_its_labels() -> None:
    model, ids = of_numbers(60)
    labels = babn.predict(model, {"input_ids": ids}, 1, seed=7).sample_logits[0, :, 0]
    found = babn.tune_noise(model, {"input_ids": ids, "labels": labels}, progress=False)
    assert found.level > 0 and found.chosen.accuracy is None
    assert found.chosen.nll == min(trial.nll for trial in found.trials)
    assert "residual" in str(found) and found.chosen.residual < found.trials[0].residual
    values = babn.predict(model, {"input_ids": ids}, 20).sample_logits.squeeze(-1)
    again = mixture_nll(values[:, :3], labels[:3], found.chosen.residual)
    for at in range(3):
        density = stats.norm(values[:, at], found.chosen.residual).pdf(labels[at]).mean()
        assert float(again[at]) == pytest.approx(-math.log(density), rel=1e-4)


@pytest.mark.thorough
def test_the_residual_of_a_regression_is_saved_and_used(tmp_path: Path) -> None:
    """Noisy labels: only intervals with the residual cover them."""
    model, ids = of_numbers(400)
    values = babn.predict(model, {"input_ids": ids}, 1, seed=7).sample_logits[0, :, 0]
    labels = values + 1.5 * torch.randn(400, generator=torch.Generator().manual_seed(2))
    narrow = babn.predict(model, {"input_ids": ids[200:]}).interval(0.9)
    data = {"input_ids": ids[:200], "labels": labels[:200]}
    found = babn.tune_noise(model, data, progress=False)
    assert babn.get_residual(model) == pytest.approx(found.chosen.residual)

    model.save_pretrained(tmp_path / "model")
    babn.save_adapter(model, tmp_path / "adapter")
    base = BertForSequenceClassification.from_pretrained(tmp_path / "model")
    for loaded in (
        babn.load(tmp_path / "model"),
        babn.load_adapter(base, tmp_path / "adapter", check_base=False),
    ):
        assert babn.get_residual(loaded) == pytest.approx(found.chosen.residual)
        prediction = babn.predict(loaded, {"input_ids": ids[200:]})
        assert prediction.residual == babn.get_residual(loaded)
        assert 0.83 < covered(prediction.interval(0.9), labels[200:]) < 0.97
        assert 0.4 < covered(prediction.interval(0.5), labels[200:]) < 0.6
    assert covered(narrow, labels[200:]) < 0.7


def covered(interval: Tensor, labels: Tensor) -> float:
    low, high = interval.unbind(-1)
    return float(((low <= labels) & (labels <= high)).double().mean())


def test_classes_have_no_residual() -> None:
    model, data = overconfident()
    babn.set_residual(model, 1.0)
    babn.tune_noise(model, data, samples=3, progress=False)
    assert babn.get_residual(model) == 0
    with pytest.raises(ConfigError, match="residual=-1"):
        babn.set_residual(model, -1)


def test_classes_of_a_regression_are_refused() -> None:
    model, data = overconfident()
    with pytest.raises(ConfigError, match="labels are floats"):
        babn.tune_noise(model, {**data, "labels": data["labels"].float()}, progress=False)
    model.config.problem_type = "regression"
    with pytest.raises(ConfigError, match="classes or tokens"):
        babn.tune_noise(model, data, progress=False)
