"""Temperature scaling."""

import math
from pathlib import Path

import pytest
import torch
from scipy import optimize
from small_evaluations import evaluation, labels, logits

import babn
from babn.errors import ConfigError
from babn.evaluation.temperature_scaling import (
    HIGHEST,
    UNIT,
    best_temperatures,
    calibrate,
    fit_temperature,
    nll_losses,
)
from babn.prediction.result import Prediction
from babn.prediction.stored_settings import get_temperature, set_temperature
from models import ALL

BERT = next(case for case in ALL if case.name == "bert")


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0])
def test_the_temperature_undoes_a_wrong_scale(scale: float) -> None:
    right = fit_temperature(logits()[0], labels())
    assert right == pytest.approx(1.0, abs=0.15)
    assert fit_temperature(logits(scale=scale)[0], labels()) == pytest.approx(scale * right)


@pytest.mark.parametrize("samples", [1, 6])
def test_it_minimises_the_negative_log_likelihood(samples: int) -> None:
    drawn, right = logits(samples=samples, scale=3.0), labels()

    def loss(log_temperature: float) -> float:
        mean = (drawn / float(torch.tensor(log_temperature).exp())).softmax(-1).mean(0)
        return float(-mean.gather(-1, right[:, None]).log().mean())

    best = optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded").x
    found = fit_temperature(Prediction(drawn), right)
    assert loss(float(torch.tensor(found).log())) <= loss(best) + 1e-9


def test_sets_of_examples_have_temperatures_of_their_own() -> None:
    drawn, right = logits(samples=2, scale=3.0), labels()
    drawn[:, ::2] *= 4.0
    even = torch.arange(len(right)) % 2 == 0
    sets = torch.stack([even, ~even, torch.ones_like(even)])
    together = best_temperatures(nll_losses(drawn, right), sets)
    alone = [fit_temperature(Prediction(drawn[:, own]), right[own]) for own in sets]
    assert together == pytest.approx(alone, rel=1e-6)
    assert together[0] > 3 * together[1]


def test_sets_far_apart_cost_no_more_than_each_alone() -> None:
    best = torch.linspace(-3, 3, 10)
    tried: list[float] = []

    def losses(temperature: float) -> torch.Tensor:
        tried.append(temperature)
        return (math.log(temperature) - best) ** 2

    found = best_temperatures(losses, torch.eye(10, dtype=torch.bool))
    assert found == pytest.approx(best.exp().tolist(), rel=1e-6)
    assert len(tried) < 33 + 10 * 2 * 33


@pytest.mark.parametrize(("sign", "end"), [(1, -HIGHEST * UNIT), (-1, HIGHEST * UNIT)])
def test_without_a_best_temperature_it_is_the_end_of_the_range(sign: int, end: float) -> None:
    sure = sign * torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    found = fit_temperature(sure, torch.tensor([0, 1]))
    assert found == pytest.approx(float(torch.tensor(end).exp()), rel=1e-3)


def test_calibration_lowers_nll_and_keeps_predicted_classes() -> None:
    before = evaluation("sure", scale=5.0).prediction
    after = before.tempered(fit_temperature(before, labels()))
    assert torch.equal(after.probs.argmax(-1), before.probs.argmax(-1))
    assert babn.metrics.nll(after.probs, labels()) < babn.metrics.nll(before.probs, labels())
    assert babn.metrics.ece(after.probs, labels()) < babn.metrics.ece(before.probs, labels())


def test_a_models_temperature_is_used_and_saved(tmp_path: Path) -> None:
    model, batch = BERT.converted(), BERT.batch()
    cold = babn.predict(model, batch, samples=2)
    set_temperature(model, 4.0)
    warm = babn.predict(model, batch, samples=2)
    torch.testing.assert_close(warm.sample_logits * 4, cold.sample_logits)
    model.save_pretrained(tmp_path)
    loaded = babn.load(tmp_path)
    assert get_temperature(loaded) == 4.0
    torch.testing.assert_close(
        babn.predict(loaded, batch, samples=2).sample_logits, warm.sample_logits
    )


def test_calibrating_twice_changes_nothing_more() -> None:
    model, batch = BERT.converted(), BERT.batch()
    right = babn.predict(model, batch, samples=3).probs.argmax(-1)
    right[:, ::4] = 1 - right[:, ::4]  # a quarter of the answers is wrong
    first = get_temperature(calibrate(model, babn.predict(model, batch, samples=3), right))
    second = get_temperature(calibrate(model, babn.predict(model, batch, samples=3), right))
    assert first != 1.0 and second == pytest.approx(first, rel=1e-3)


def test_belief_weights_from_before_temperatures_load(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    babn.save_adapter(BERT.converted(), tmp_path)
    path = tmp_path / "belief.safetensors"
    tensors = load_file(path)
    del tensors["temperature"]
    save_file(tensors, path)
    assert get_temperature(babn.load_adapter(BERT.model(), tmp_path)) == 1.0


def test_impossible_temperatures_are_refused() -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="temperature="):
            set_temperature(BERT.converted(), wrong)
    with pytest.raises(ConfigError, match="activation='identity'"):
        fit_temperature(Prediction(logits(), "identity"), labels())


def test_values_of_regression_have_no_temperature() -> None:
    prediction = Prediction(logits(), "identity")
    assert prediction.tempered(3.0) is prediction
