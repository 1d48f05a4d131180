"""Texts as tensors: batches of similar lengths for training, single ones for testing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from babn.data.intents import Labelled

Tokenizer = Any
"""A tokenizer of transformers, which has no type of its own."""

Batch = dict[str, Tensor]

MAX_TOKENS = 64
"""Texts are cut here; the longest one that comes with the package has 30 word pieces."""

BUCKET = 8
"""Batches whose texts are sorted by length together, so that little is spent on padding."""


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


def bucketed(lengths: list[int], size: int, generator: torch.Generator) -> list[list[int]]:
    """Random batches of indices such that lengths within a batch are close to each other."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), size * BUCKET):
        bucket = sorted(order[start : start + size * BUCKET], key=lengths.__getitem__)
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]


def encode(tokenizer: Tokenizer, texts: Sequence[str], device: torch.device) -> Batch:
    """Texts as padded tensors."""
    encoded = tokenizer(
        list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
    )
    return dict(encoded.to(device))


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next(model.parameters()).device
