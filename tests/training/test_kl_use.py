"""A loss without the KL is noticed, and no other one."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_training import PlainTrainerInOrder, arguments, batch_of, bert, texts, without_noise
from torch import Tensor, nn

import babn
from babn.errors import BabnWarning


def converted(**settings: Any) -> Any:
    return babn.convert(bert(), without_noise(**{"kl_weight": 0.5, **settings})).train()


def likelihood(model: nn.Module) -> Tensor:
    batch = batch_of(texts())
    labels = batch.pop("labels")
    return F.cross_entropy(model(**batch).logits, labels)


def warnings_of(train: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(each.message) for each in caught if issubclass(each.category, BabnWarning)]


def smoothed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, label_smoothing=0.1)


@pytest.mark.parametrize("way", ["label smoothing", "compute_loss_func", "compute_loss"])
def test_trainers_that_lose_the_kl_are_noticed_once(way: str, tmp_path: Path) -> None:
    class OwnLoss(PlainTrainerInOrder):
        """Passes the labels, and takes no notice of the model's own loss."""

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
            return smoothed(model(**inputs), inputs["labels"])

    smoothing = 0.1 if way == "label smoothing" else 0.0
    settings = arguments(tmp_path, max_steps=4, label_smoothing_factor=smoothing)
    own = smoothed if way == "compute_loss_func" else None
    kind = OwnLoss if way == "compute_loss" else PlainTrainerInOrder
    trainer = kind(converted(), settings, train_dataset=texts(), compute_loss_func=own)
    (found,) = warnings_of(trainer.train)
    assert "babn.BeliefTrainer" in found and "\n" not in found


def model_loss(model: nn.Module) -> None:
    model(**batch_of(texts())).loss.backward()


def own_loss(model: nn.Module) -> None:
    (likelihood(model) + babn.weighted_kl(model)).backward()


def loss_from_layers(model: nn.Module) -> None:
    loss = likelihood(model)
    (loss + 0.1 * sum(babn.kl_per_layer(model).values())).backward()


def loss_from_output(model: nn.Module) -> None:
    output = model(**{n: x for n, x in batch_of(texts()).items() if n != "labels"})
    (output.logits.square().mean() + output.belief_kl).backward()


def in_two_parts(model: nn.Module) -> None:
    likelihood(model).backward(retain_graph=True)
    babn.weighted_kl(model).backward()


def forward_alone(model: nn.Module) -> None:
    likelihood(model)


def two_passes(model: nn.Module) -> None:
    (likelihood(model) + likelihood(model) + babn.weighted_kl(model)).backward()


def without_weight(model: nn.Module) -> None:
    babn.set_kl_weight(model, 0.0)
    likelihood(model).backward()


def in_evaluation_mode(model: nn.Module) -> None:
    likelihood(model.eval()).backward()


def of_the_head_alone(model: Any) -> None:
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    likelihood(model).backward()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "step",
    [
        *(model_loss, own_loss, loss_from_layers, loss_from_output, in_two_parts, forward_alone),
        *(two_passes, without_weight, in_evaluation_mode, of_the_head_alone),
    ],
)
def test_other_loops_are_left_alone(step: Callable[[Any], None]) -> None:
    model = converted()
    assert warnings_of(lambda: [step(model) for _ in range(2)]) == []


def test_a_loop_without_the_kl_is_noticed_once() -> None:
    model = converted()

    def train() -> None:
        for _ in range(3):
            likelihood(model).backward()

    assert len(warnings_of(train)) == 1
    own_loss(model)


def test_noticing_changes_no_gradient() -> None:
    model = converted()
    torch.manual_seed(0)
    own_loss(model)
    found = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    torch.manual_seed(0)
    model_loss(model)
    assert all(torch.equal(found[n], p.grad) for n, p in model.named_parameters())
