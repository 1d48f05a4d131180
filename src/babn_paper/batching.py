"""Random batches of examples with similar lengths."""

from collections.abc import Sequence

import torch

BUCKET = 8
"""Number of batches whose examples are sorted by length together, to reduce padding."""


def bucketed(
    lengths: Sequence[int], size: int, generator: torch.Generator, buckets: int = BUCKET
) -> list[list[int]]:
    """Random batches of indices with similar lengths in each batch."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), size * buckets):
        bucket = order[start : start + size * buckets]
        if buckets > 1:
            bucket.sort(key=lengths.__getitem__)
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]


def by_tokens(lengths: Sequence[int], tokens: int, generator: torch.Generator) -> list[list[int]]:
    """Random batches of indices with at most `tokens` tokens, padding included, or one example.

    The order of examples with equal length differs between epochs; the batch sizes do not, so every
    epoch has equally many batches.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    order.sort(key=lengths.__getitem__)
    batches: list[list[int]] = [[]]
    for index in order:
        if batches[-1] and (len(batches[-1]) + 1) * lengths[index] > tokens:
            batches.append([])
        batches[-1].append(index)
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]
