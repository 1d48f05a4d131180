"""Fine-tuning by transformers' Trainer, or by `babn.BeliefTrainer` if attention is random."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from torch import nn

from babn.conversion.state import converted_roots
from babn.prediction.batches import Text, text_columns
from babn.training.trainer import BeliefTrainer

Report = Callable[[dict[str, float]], None]
Collate = Callable[[list[Any]], dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning, with softmax attention and with BABN.

    Attributes:
        epochs: Epochs of training.
        rate: Peak learning rate, from which it decays linearly to zero.
        batch_size: Examples in one step.
        warmup: Fraction of the steps over which the rate grows linearly.
    """

    epochs: int
    rate: float
    batch_size: int = 16
    warmup: float = 0.1


def fine_tune(
    model: nn.Module,
    rows: Sequence[Mapping[str, Any]],
    collate: Collate,
    recipe: Recipe,
    seed: int,
    report: Report | None = None,
    mixin: type[Any] | None = None,
    **settings: Any,
) -> None:
    """Trains a model in place.

    Args:
        model: The model, which returns a loss.
        rows: The training examples.
        collate: Makes a batch of examples.
        recipe: Epochs, learning rate and batch size.
        seed: Seed of the order and of dropout.
        report: Receives the terms of the loss after each step.
        mixin: A further base class of the Trainer.
        **settings: Further `TrainingArguments`.
    """
    base = BeliefTrainer if converted_roots(model) else transformers.Trainer
    kind = base if mixin is None else type(base.__name__, (mixin, base), {})
    if "input_ids" in rows[0]:
        settings = {"train_sampling_strategy": "group_by_length", **settings}
    with TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=recipe.epochs,
            learning_rate=recipe.rate,
            per_device_train_batch_size=recipe.batch_size,
            warmup_steps=recipe.warmup,
            seed=seed,
            logging_steps=1 if report else 10**6,
            logging_nan_inf_filter=False,  # which waits for the GPU after each step
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **settings,
        )
        trainer = kind(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=collate,
            callbacks=[] if report is None else [_Reporter(report)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def text_data(
    tokenizer: Any, texts: Sequence[Text], labels: Sequence[int]
) -> tuple[list[dict[str, Any]], Collate]:
    """The rows and the collator with which `fine_tune` trains on texts or pairs of texts."""
    columns = {**tokenizer(*text_columns(texts), truncation=True), "labels": labels}
    rows = [{name: column[i] for name, column in columns.items()} for i in range(len(texts))]
    pad = transformers.DataCollatorWithPadding(tokenizer)
    return rows, lambda batch: dict(pad(batch))


class _Reporter(transformers.TrainerCallback):
    """Passes the logs of training steps on."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports every step; the summary at the end has no loss of its own."""
        if "loss" in kwargs["logs"]:
            self.report(kwargs["logs"])
