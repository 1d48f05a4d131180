"""Texts as tensors: batches of similar lengths for training, single ones for testing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from babn.data.intents import Labelled
from babn.text.batching import bucketed

Tokenizer = Any
"""A tokenizer of transformers, which has no type of its own."""

Batch = dict[str, Tensor]

MAX_TOKENS = 64
"""Texts are cut here; the longest one that comes with the package has 30 word pieces."""


def make_batches(
    tokenizer: Tokenizer, data: Labelled, size: int, epochs: int, seed: int, device: torch.device
) -> list[Batch]:
    """The batches of all epochs in order, each of `size` texts of about the same length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [len(ids) for ids in tokenizer(list(data.texts))["input_ids"]]
    batches = []
    for _ in range(epochs):
        for rows in bucketed(lengths, size, generator):
            batch = encode(tokenizer, [data.texts[i] for i in rows], device)
            batch["labels"] = torch.tensor([data.labels[i] for i in rows], device=device)
            batches.append(batch)
    return batches


def encode(tokenizer: Tokenizer, texts: Sequence[str], device: torch.device) -> Batch:
    """Texts as padded tensors."""
    encoded = tokenizer(
        list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
    )
    return dict(encoded.to(device))


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next(model.parameters()).device
