"""A classification problem of the smallest size: two classes with words of their own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import BertConfig, BertForSequenceClassification

from babn_paper.method_comparison import Problem, Variant

WORDS, LENGTH = 40, 6


def bert(**settings: Any) -> nn.Module:
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "num_labels": 3,
    }
    return BertForSequenceClassification(BertConfig(**{**sizes, **settings}))


def batches(count: int, seed: int, noise: float = 0.4) -> list[dict[str, Tensor]]:
    """Batches of 16 texts of three classes, each mostly with words of its own."""
    generator = torch.Generator().manual_seed(seed)
    third = WORDS // 3
    labels = torch.randint(3, (16 * count,), generator=generator)
    own = torch.randint(third, (len(labels), LENGTH), generator=generator) + third * labels[:, None]
    other = torch.randint(WORDS, own.shape, generator=generator)
    ids = torch.where(torch.rand(own.shape, generator=generator) < noise, other, own)
    rows = [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids]
    rows = [{**row, "labels": label} for row, label in zip(rows, labels, strict=True)]
    return [default_collate(rows[16 * i : 16 * i + 16]) for i in range(count)]


TRAINING, DEVELOPMENT, TEST = batches(8, 0), batches(2, 1), batches(3, 2)
OUTSIDE = batches(2, 3, noise=1.0)

trained: list[tuple[str, int]] = []
"""The variants and seeds of all trainings, in order."""


def train(model: nn.Module, variant: Variant, seed: int) -> None:
    """A few steps of plain training."""
    trained.append((variant.name, seed))
    torch.manual_seed(seed)
    steps = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    model.train()
    for _ in range(4):
        for batch in TRAINING:
            steps.zero_grad()
            model(**batch).loss.backward()
            steps.step()


def problem() -> Problem:
    return Problem(bert, train, TRAINING, DEVELOPMENT)
