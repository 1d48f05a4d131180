"""The Trainer for converted models: its losses, logs and predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_training import (
    BELIEF,
    BeliefTrainerInOrder,
    PlainTrainerInOrder,
    arguments,
    batch_of,
    bert,
    largest_gap,
    one_step_of_descent,
    texts,
    training_logs,
    without_noise,
)
from transformers import EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

import babn
from babn.errors import NotConvertedError, UnsupportedAttentionError

LAYERS = [f"kl/bert.encoder.layer.*.attention.self/{step}" for step in range(2)]


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def test_fine_tuning_learns_the_task_and_logs_the_kl(tmp_path: Path) -> None:
    trainer = babn.BeliefTrainer(
        babn.convert(bert(), BELIEF),
        arguments(tmp_path, max_steps=40, learning_rate=5e-3, per_device_train_batch_size=16),
        train_dataset=texts(64),
        eval_dataset=texts(64, seed=1),
        compute_metrics=accuracy,
        annealing=babn.KLAnnealing(weight=0.1),
    )
    trainer.train()
    logs = training_logs(trainer)
    assert len(logs) == 40
    for entry in logs:
        assert entry["kl"] == pytest.approx(sum(entry[name] for name in LAYERS), rel=1e-5)
        assert entry["loss"] == pytest.approx(
            entry["nll"] + entry["kl_weight"] * entry["kl"], rel=1e-4
        )
    assert logs[0]["kl_weight"] == 0.0
    assert logs[-1]["kl_weight"] == pytest.approx(0.1)
    assert trainer.evaluate()["eval_accuracy"] > 0.95


def test_methods_without_a_prior_log_no_kl(tmp_path: Path) -> None:
    model = babn.convert(bert(), babn.SoftmaxConfig())
    trainer = babn.BeliefTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=texts())
    trainer.train()
    assert not {"kl", "nll", "kl_weight"} & set(training_logs(trainer)[0])


def test_logs_are_means_over_the_steps_since_the_last(tmp_path: Path) -> None:
    def train(logging_steps: int) -> list[dict[str, float]]:
        settings = arguments(tmp_path, max_steps=4, logging_steps=logging_steps, learning_rate=1e-2)
        model = babn.convert(bert(), without_noise())
        trainer = BeliefTrainerInOrder(model, settings, train_dataset=texts(32))
        trainer.train()
        return training_logs(trainer)

    every_step, at_the_end = train(1), train(4)
    for name in ("loss", "nll", "kl", *LAYERS):
        mean = np.mean([entry[name] for entry in every_step])
        assert at_the_end[0][name] == pytest.approx(mean, rel=1e-5)


def test_weights_move_by_the_gradient_of_the_negative_elbo(tmp_path: Path) -> None:
    config = without_noise(kl_weight=0.5)
    trained, expected = babn.convert(bert(), config), babn.convert(bert(), config)
    expected.load_state_dict(trained.state_dict())
    BeliefTrainerInOrder(trained, one_step_of_descent(tmp_path), train_dataset=texts()).train()
    expected.train()(**batch_of(texts())).loss.backward()
    torch.optim.SGD(expected.parameters(), lr=0.1).step()
    assert largest_gap(trained, expected) < 1e-6


def test_label_smoothing_keeps_the_kl(tmp_path: Path) -> None:
    model = babn.convert(bert(), without_noise(kl_weight=0.5))
    settings = one_step_of_descent(tmp_path, label_smoothing_factor=0.2)
    batch = batch_of(texts())
    logits = model.eval()(**batch).logits
    smoothed = F.cross_entropy(logits, batch["labels"], label_smoothing=0.2).item()
    trainer = BeliefTrainerInOrder(model, settings, train_dataset=texts())
    trainer.train()
    (entry,) = training_logs(trainer)
    assert entry["nll"] == pytest.approx(smoothed, rel=1e-5)
    assert entry["loss"] == pytest.approx(smoothed + 0.5 * entry["kl"], rel=1e-5)


def doubled_cross_entropy(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return 2 * F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def test_custom_loss_keeps_the_kl(tmp_path: Path) -> None:
    model = babn.convert(bert(), without_noise(kl_weight=0.5))
    batch = batch_of(texts())
    likelihood = F.cross_entropy(model.eval()(**batch).logits, batch["labels"]).item()
    trainer = BeliefTrainerInOrder(
        model,
        one_step_of_descent(tmp_path),
        train_dataset=texts(),
        compute_loss_func=doubled_cross_entropy,
    )
    trainer.train()
    (entry,) = training_logs(trainer)
    assert entry["loss"] == pytest.approx(2 * likelihood + 0.5 * entry["kl"], rel=1e-5)


def with_pages(tmp_path: Path, remove: bool) -> babn.BeliefTrainer:
    pages = [{**text, "page": torch.tensor(i)} for i, text in enumerate(texts())]
    settings = arguments(tmp_path, max_steps=1, remove_unused_columns=remove)
    return babn.BeliefTrainer(babn.convert(bert(), BELIEF), settings, train_dataset=pages)


def test_columns_that_the_model_does_not_know_are_left_out(tmp_path: Path) -> None:
    trainer = with_pages(tmp_path, remove=True)
    trainer.train()
    assert training_logs(trainer)[0]["kl"] > 0


def test_columns_that_reach_attention_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAttentionError, match="passes page to its attention"):
        with_pages(tmp_path, remove=False).train()


def test_evaluation_loss_is_the_likelihood_of_the_posterior_mean(tmp_path: Path) -> None:
    model, batch = babn.convert(bert(), BELIEF), batch_of(texts())
    trainer = babn.BeliefTrainer(model, arguments(tmp_path), eval_dataset=texts())
    expected = F.cross_entropy(model.eval()(**batch).logits, batch["labels"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_predict_gives_logits_alone(tmp_path: Path) -> None:
    model = babn.convert(bert(), BELIEF)
    found = babn.BeliefTrainer(model, arguments(tmp_path)).predict(texts())
    expected = model.eval()(**batch_of(texts())).logits.detach()
    assert found.predictions.shape == (8, 2)
    np.testing.assert_allclose(found.predictions, expected, rtol=1e-5, atol=1e-6)


def test_evaluation_inside_sampling_draws_samples(tmp_path: Path) -> None:
    model = babn.convert(
        bert(initializer_range=0.5), babn.BeliefConfig.pairs(max_length=16, rho=1.0)
    )
    trainer = babn.BeliefTrainer(model, arguments(tmp_path))
    mean = trainer.predict(texts()).predictions
    with babn.sampling(model, seed=0):
        sample = trainer.predict(texts()).predictions
    assert np.abs(sample - mean).max() > 1e-3


def test_mixin_serves_other_trainers(tmp_path: Path) -> None:
    class Other(babn.BeliefTrainerMixin, Seq2SeqTrainer):
        pass

    settings = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    model = babn.convert(bert(), BELIEF).train()
    constant = babn.KLAnnealing(schedule="constant", weight=0.1)
    loss, outputs = Other(model, settings, annealing=constant).compute_loss(
        model, batch_of(texts()), return_outputs=True
    )
    torch.testing.assert_close(loss, outputs.loss + 0.1 * outputs.belief_kl)


def test_the_weight_grows_linearly_by_default(tmp_path: Path) -> None:
    settings = arguments(tmp_path, max_steps=4, logging_steps=1)
    model = babn.convert(bert(), without_noise(kl_weight=0.5))
    trainer = babn.BeliefTrainer(model, settings, train_dataset=texts())
    trainer.train()
    assert [entry["kl_weight"] for entry in training_logs(trainer)] == [0.0, 0.25, 0.5, 0.5]


def test_a_model_that_is_not_converted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotConvertedError, match="not converted"):
        babn.BeliefTrainer(bert(), arguments(tmp_path))


@pytest.mark.thorough
def test_plain_trainer_loses_the_kl_under_label_smoothing(tmp_path: Path) -> None:
    """The trap that BeliefTrainer is there for."""
    settings = one_step_of_descent(tmp_path, label_smoothing_factor=0.2)
    heavy, light = (babn.convert(bert(), without_noise(kl_weight=w)) for w in (9.0, 0.0))
    light.babn.load_state_dict({**heavy.babn.state_dict(), "kl_weight": torch.tensor(0.0)})
    for model in (heavy, light):
        PlainTrainerInOrder(model, settings, train_dataset=texts()).train()
    assert largest_gap(heavy, light) < 1e-6


@pytest.mark.thorough
def test_gradient_checkpointing_keeps_the_gradients(tmp_path: Path) -> None:
    old, new = "gradient_checkpointing", "activation_checkpointing"
    option = new if hasattr(Seq2SeqTrainingArguments, new) else old
    models = [babn.convert(bert(), without_noise()) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, on in zip(models, (False, True), strict=True):
        settings = one_step_of_descent(tmp_path, **{option: on})
        BeliefTrainerInOrder(model, settings, train_dataset=texts()).train()
    assert largest_gap(*models) < 1e-6
