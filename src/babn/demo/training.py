"""Fine-tuning on the intents."""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import DataCollatorWithPadding

from babn.data.intents import Labelled
from babn.training import fine_tuning
from babn.training.fine_tuning import Recipe as Recipe


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
    fine_tuning.fine_tune(model, rows, lambda batch: dict(pad(batch)), recipe, seed, report)
