"""LoRA adapters on top of a converted model; both are trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from small_training import arguments, batch_of, bert, texts, training_logs
from torch import Tensor

import babn

pytestmark = pytest.mark.thorough

CONFIG = babn.BeliefConfig.pairs(max_length=16, rho=1.0, kl_weight=0.1)
TO_SAVE = ["babn", "classifier"]


def adapted(modules_to_save: list[str] | None = None) -> PeftModel:
    model = babn.convert(bert(initializer_range=0.3), CONFIG)
    lora = LoraConfig(target_modules=["query", "value"], modules_to_save=modules_to_save)
    return get_peft_model(model, lora).train()


def with_trainable_beliefs() -> PeftModel:
    """What works without peft's help: the belief parameters are switched on again."""
    model = adapted()
    model.base_model.model.babn.requires_grad_(True)
    return model


WAYS = pytest.mark.parametrize(
    "make", [with_trainable_beliefs, lambda: adapted(TO_SAVE)], ids=["switched-on", "to-save"]
)


def trained_by(model: PeftModel, loss: Tensor) -> set[str]:
    """Which parts of the model have gradients."""
    loss.backward()
    moved = [n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()]
    return {part for part in ("lora_A", "lora_B", "babn") if any(part in n for n in moved)}


@WAYS
def test_output_carries_the_kl(make: Any) -> None:
    model, batch = make(), batch_of(texts())
    output = model(**batch)
    likelihood = F.cross_entropy(output.logits, batch["labels"])
    assert len(babn.kl_per_layer(output)) == 2
    torch.testing.assert_close(output.loss, likelihood + 0.1 * output.belief_kl)


@WAYS
def test_adapters_and_beliefs_are_both_trained(make: Any) -> None:
    model = make()
    assert {"lora_B", "babn"} <= trained_by(model, model(**batch_of(texts())).loss)


@WAYS
def test_weight_of_the_kl_can_be_set(make: Any) -> None:
    model, batch = make(), batch_of(texts())
    babn.set_kl_weight(model, 0.0)
    output = model(**batch)
    assert babn.get_kl_weight(model) == 0
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, batch["labels"]))


@WAYS
def test_samples_are_drawn_with_the_trained_beliefs(make: Any) -> None:
    """Beliefs without any doubt left: samples must agree."""
    model, batch = make().eval(), batch_of(texts())
    spread = babn.predict(model, batch, samples=4).std.max()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "shape_map.bias" in name:
                parameter.fill_(1e6)
    assert spread > 1e-4
    assert babn.predict(model, batch, samples=4).std.max() < 1e-5


@WAYS
def test_trainer_trains_both(make: Any, tmp_path: Path) -> None:
    model = make()
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    settings = arguments(tmp_path, max_steps=2, learning_rate=1e-2)
    trainer = babn.BeliefTrainer(model, settings, train_dataset=texts())
    trainer.train()
    moved = {n for n, p in model.named_parameters() if n in before and not p.equal(before[n])}
    assert training_logs(trainer)[-1]["kl"] > 0
    assert any("lora_B" in name for name in moved)
    assert any("babn" in name for name in moved)


def test_saved_adapters_bring_the_beliefs_back(tmp_path: Path) -> None:
    model, batch = adapted(TO_SAVE), batch_of(texts())
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model(**batch).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path)
    base = babn.convert(bert(initializer_range=0.3), CONFIG)
    loaded = PeftModel.from_pretrained(base, tmp_path)
    expected = babn.predict(model, batch, samples=2).sample_logits
    assert torch.equal(babn.predict(loaded, batch, samples=2).sample_logits, expected)


def test_beliefs_of_an_adapted_model_are_saved_alone(tmp_path: Path) -> None:
    model = with_trainable_beliefs()
    babn.save_adapter(model, tmp_path)
    with pytest.warns(babn.errors.BabnWarning, match="not be verified: the adapters"):
        loaded = babn.load_adapter(bert(initializer_range=0.3), tmp_path)
    saved = model.base_model.model.babn.state_dict()
    assert all(
        torch.equal(tensor, saved[name]) for name, tensor in loaded.babn.state_dict().items()
    )


def test_an_adapted_model_is_converted_with_example_inputs() -> None:
    lora = LoraConfig(target_modules=["query", "value"])
    model = get_peft_model(bert(), lora)
    batch = batch_of(texts())
    babn.convert(model, CONFIG, example_inputs=batch).train()
    output = model(**batch)
    assert {"lora_B", "babn"} <= trained_by(model, output.loss)
    torch.testing.assert_close(
        output.loss, F.cross_entropy(output.logits, batch["labels"]) + 0.1 * output.belief_kl
    )
