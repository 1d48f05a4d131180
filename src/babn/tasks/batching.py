"""The order in which examples are trained on."""

from collections.abc import Sequence

import torch

BUCKET = 8
"""Batches whose examples are sorted by length together, so that little is spent on padding."""


def bucketed(
    lengths: Sequence[int], size: int, generator: torch.Generator, buckets: int = BUCKET
) -> list[list[int]]:
    """Random batches of indices such that lengths within a batch are close to each other."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), size * buckets):
        bucket = order[start : start + size * buckets]
        if buckets > 1:
            bucket.sort(key=lengths.__getitem__)
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]
