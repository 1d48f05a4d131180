"""Fine-tuning on the intents by transformers' Trainer, or by `babn.BeliefTrainer`."""

from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import babn
from babn.conversion.state import converted_roots
from babn.data.intents import Labelled


@dataclass(frozen=True)
class Recipe:
    """How a model is fine-tuned, with softmax attention and with BABN alike.

    Attributes:
        epochs: Passes over the training texts.
        rate: Highest learning rate, after which it falls linearly to zero.
        batch_size: Texts in one step.
        warmup: Share of the steps over which the rate grows.
    """

    epochs: int
    rate: float
    batch_size: int = 16
    warmup: float = 0.1


def fine_tune(
    model: nn.Module,
    tokenizer: Any,
    data: Labelled,
    recipe: Recipe,
    seed: int,
    report: Callable[[dict[str, float]], None],
) -> None:
    """Trains in place; `report` gets the terms of the loss after each step."""
    encoded = tokenizer(list(data.texts), truncation=True)
    columns = {**encoded, "labels": data.labels}
    rows = [{name: column[i] for name, column in columns.items()} for i in range(len(data))]
    pad = DataCollatorWithPadding(tokenizer)
    kind = babn.BeliefTrainer if converted_roots(model) else Trainer
    with TemporaryDirectory() as folder:
        trainer = kind(
            model=model,
            args=_arguments(folder, recipe, seed),
            train_dataset=rows,
            data_collator=lambda batch: dict(pad(batch)),
            callbacks=[_Reporter(report)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def _arguments(folder: str, recipe: Recipe, seed: int) -> TrainingArguments:
    return TrainingArguments(
        folder,
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.rate,
        per_device_train_batch_size=recipe.batch_size,
        warmup_steps=recipe.warmup,
        seed=seed,
        train_sampling_strategy="group_by_length",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


class _Reporter(TrainerCallback):
    """Forwards the logs of training steps."""

    def __init__(self, report: Callable[[dict[str, float]], None]) -> None:
        self.report = report

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports every step; the summary at the end has no loss of its own."""
        if "loss" in kwargs["logs"]:
            self.report(kwargs["logs"])
