"""The problem of classifying texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from babn.prediction.batches import Text, text_batches
from babn.training.fine_tuning import Recipe, fine_tune, text_data
from babn_paper.method_comparison.trained_models import Batches, Problem, Variant

UNKNOWN = 0
"""Label of out-of-domain texts, which have none."""


@dataclass(frozen=True)
class Texts:
    """Texts or pairs of texts with their classes.

    Attributes:
        texts: The texts.
        labels: The index of each one's class; by default none is known.
    """

    texts: Sequence[Text]
    labels: Sequence[int] = ()

    def batches(self, tokenizer: Any, size: int = 256) -> Batches:
        """Batches of texts of similar lengths, on the CPU."""
        encoded, order = text_batches(tokenizer, self.texts, size, torch.device("cpu"))
        labels = torch.tensor(self.labels or [UNKNOWN] * len(self.texts))[order.argsort()]
        parts = labels.split(size)
        return [{**batch, "labels": y} for batch, y in zip(encoded, parts, strict=True)]


def text_problem(
    build: Callable[[], nn.Module],
    tokenizer: Any,
    train: Texts,
    development: Texts,
    recipe: Recipe,
    memory: float | None = None,
    size: int = 256,
) -> Problem:
    """The problem of fine-tuning an encoder, in bfloat16 on a GPU.

    Args:
        build: Makes a classifier of transformers with a new head.
        tokenizer: Its tokenizer, whose `model_max_length` truncates texts.
        train: Training data.
        development: Development data.
        recipe: How it is trained.
        memory: Gigabytes for one forward pass of a prediction.
        size: Texts in a batch of a prediction.
    """
    rows, collate = text_data(tokenizer, train.texts, train.labels)

    def trained(model: nn.Module, variant: Variant, seed: int) -> None:
        fine_tune(
            model,
            rows,
            collate,
            replace(recipe, rate=recipe.rate * variant.rate),
            seed,
            mixin=None if variant.trainer is None else variant.trainer(),
            label_smoothing_factor=variant.label_smoothing,
            bf16=torch.cuda.is_available(),
        )

    training, tuning = (part.batches(tokenizer, size) for part in (train, development))
    return Problem(build, trained, training, tuning, memory)
