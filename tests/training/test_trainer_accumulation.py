"""Accumulated gradients: four batches of two must do what one batch of eight does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from small_training import (
    BeliefTrainerInOrder,
    PlainTrainerInOrder,
    bert,
    gpt2,
    images,
    largest_gap,
    one_step_of_descent,
    stories,
    texts,
    training_logs,
    vit,
    without_noise,
)
from torch import nn
from transformers import Trainer

import babn

pytestmark = pytest.mark.thorough

TASKS = {"bert": (bert, texts), "vit": (vit, images), "gpt2": (gpt2, stories)}


def train(
    folder: Path,
    task: str,
    batch: int,
    steps: int,
    trainer: type[Trainer] = BeliefTrainerInOrder,
    kl_reduction: str = "mean",
    prepare: Callable[[nn.Module], Any] = lambda model: None,
    settings: dict[str, Any] | None = None,
    **arguments: Any,
) -> Trainer:
    """One optimizer step over `steps` batches of `batch` examples."""
    build, examples = TASKS[task]
    model = build()
    prepare(model)
    model = babn.convert(model, without_noise(kl_reduction=kl_reduction, kl_weight=0.5))
    sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
    descent = one_step_of_descent(folder, **sizes, **(settings or {}))
    made = trainer(model, descent, train_dataset=examples(), **arguments)
    made.train()
    return made


@pytest.mark.parametrize("kl_reduction", ["mean", "sum"])
@pytest.mark.parametrize("task", TASKS)
def test_accumulation_gives_the_same_weights(tmp_path: Path, task: str, kl_reduction: str) -> None:
    whole = train(tmp_path, task, 8, 1, kl_reduction=kl_reduction)
    parts = train(tmp_path, task, 2, 4, kl_reduction=kl_reduction)
    assert largest_gap(whole.model, parts.model) < 1e-5


def test_accumulation_for_a_model_that_takes_no_count_of_items(tmp_path: Path) -> None:
    def refuse_counts(model: nn.Module) -> None:
        model.accepts_loss_kwargs = False

    whole = train(tmp_path, "bert", 8, 1, prepare=refuse_counts)
    parts = train(tmp_path, "bert", 2, 4, prepare=refuse_counts)
    assert largest_gap(whole.model, parts.model) < 1e-6


def test_accumulation_under_label_smoothing(tmp_path: Path) -> None:
    smoothing = {"label_smoothing_factor": 0.1}
    whole = train(tmp_path, "gpt2", 8, 1, settings=smoothing)
    parts = train(tmp_path, "gpt2", 2, 4, settings=smoothing)
    assert largest_gap(whole.model, parts.model) < 1e-6


def summed_cross_entropy(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def test_accumulation_with_a_custom_loss(tmp_path: Path) -> None:
    whole = train(tmp_path, "bert", 8, 1, compute_loss_func=summed_cross_entropy)
    parts = train(tmp_path, "bert", 2, 4, compute_loss_func=summed_cross_entropy)
    assert largest_gap(whole.model, parts.model) < 1e-6


class MeanOfBatch(BeliefTrainerInOrder):
    """Computes a loss of its own, and says that it is a mean over one batch."""

    loss_is_scaled_for_ga = False


def test_accumulation_with_a_loss_declared_as_unscaled(tmp_path: Path) -> None:
    def mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return F.cross_entropy(outputs.logits, labels)

    whole = train(tmp_path, "bert", 8, 1, MeanOfBatch, compute_loss_func=mean)
    parts = train(tmp_path, "bert", 2, 4, MeanOfBatch, compute_loss_func=mean)
    assert largest_gap(whole.model, parts.model) < 1e-6


def test_a_last_step_of_fewer_batches(tmp_path: Path) -> None:
    """Three batches of two and then the one that is left, against batches of six and two."""
    whole = train(tmp_path, "gpt2", 6, 1, settings={"max_steps": 2})
    parts = train(tmp_path, "gpt2", 2, 3, settings={"max_steps": 2})
    assert largest_gap(whole.model, parts.model) < 1e-6


@pytest.mark.parametrize("task", TASKS)
def test_logged_terms_add_up_under_accumulation(tmp_path: Path, task: str) -> None:
    (entry,) = training_logs(train(tmp_path, task, 2, 4))
    assert entry["loss"] == pytest.approx(entry["nll"] + 0.5 * entry["kl"], rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_logged_terms_add_up_over_steps_of_different_numbers_of_batches(
    tmp_path: Path, task: str
) -> None:
    """Three batches and one: steps count the same, not batches."""
    settings = {"max_steps": 2, "logging_steps": 2}
    (entry,) = training_logs(train(tmp_path, task, 2, 3, settings=settings))
    assert entry["loss"] == pytest.approx(entry["nll"] + 0.5 * entry["kl"], rel=1e-5)


def test_plain_trainer_multiplies_the_kl(tmp_path: Path) -> None:
    """The trap that BeliefTrainer is there for: four times the KL in four batches."""
    whole = train(tmp_path, "gpt2", 8, 1, PlainTrainerInOrder)
    parts = train(tmp_path, "gpt2", 2, 4, PlainTrainerInOrder)
    kl = training_logs(train(tmp_path, "gpt2", 8, 1))[0]["kl"]
    excess = training_logs(parts)[0]["loss"] - training_logs(whole)[0]["loss"]
    assert excess == pytest.approx(3 * 0.5 * kl, rel=1e-4)
    assert largest_gap(whole.model, parts.model) > 1e-3
