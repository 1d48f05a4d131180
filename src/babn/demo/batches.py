"""Texts as tensors."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from babn.data.intents import Labelled

Tokenizer = Any
"""A tokenizer of transformers, which has no type of its own."""

Batch = dict[str, Tensor]

MAX_TOKENS = 64
"""Texts are cut here; the longest one that comes with the package has 30 word pieces."""

SIZE = 16
"""Texts in one pass; small, because every sample adds as many again."""


def encode(tokenizer: Tokenizer, texts: Sequence[str], device: torch.device) -> Batch:
    """Texts as padded tensors."""
    encoded = tokenizer(
        list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
    )
    return dict(encoded.to(device))


def by_length(
    tokenizer: Tokenizer, texts: Sequence[str], device: torch.device
) -> Iterator[tuple[list[int], Batch]]:
    """Batches of texts of about the same length, each with the numbers of its texts."""
    lengths = [len(ids) for ids in tokenizer(list(texts))["input_ids"]]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    for start in range(0, len(order), SIZE):
        rows = order[start : start + SIZE]
        yield rows, encode(tokenizer, [texts[i] for i in rows], device)


def labelled_batches(tokenizer: Tokenizer, data: Labelled, device: torch.device) -> list[Batch]:
    """All texts in batches with their labels, as `babn.tune_noise` takes them."""
    labels = torch.tensor(data.labels, device=device)
    batches = by_length(tokenizer, data.texts, device)
    return [{**batch, "labels": labels[rows]} for rows, batch in batches]


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next(model.parameters()).device
