"""Texts and pairs of texts as tensors."""

from collections.abc import Sequence

import torch

from babn.errors import ConfigError
from babn_paper.tasks.ragged import Ragged
from babn_paper.tasks.task import Tokenizer

CHUNK = 1024
"""Texts in one call of the tokenizer, which keeps much about each until the call ends."""


def encode_texts(
    texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer, max_length: int
) -> dict[str, Ragged]:
    """What the tokenizer makes of texts or pairs, the longer text of a pair cut first.

    Args:
        texts: For each example one text or two.
        tokenizer: A tokenizer of transformers.
        max_length: The most tokens that an example may have.
    """
    padding = _padding(tokenizer)
    chunks: dict[str, list[Ragged]] = {}
    for start in range(0, len(texts), CHUNK):
        sides = (list(side) for side in zip(*texts[start : start + CHUNK], strict=True))
        made = tokenizer(
            *sides, truncation="longest_first", max_length=max_length, return_attention_mask=True
        )
        for name in padding.keys() & made.keys():
            chunks.setdefault(name, []).append(Ragged.of(made[name], padding[name]))
    return {name: _join(chunks[name]) for name in padding if name in chunks}


def _padding(tokenizer: Tokenizer) -> dict[str, int]:
    """What fills up each argument."""
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"The tokenizer {type(tokenizer).__name__} has no padding token. Set its pad_token."
        )
    return {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }


def _join(chunks: Sequence[Ragged]) -> Ragged:
    lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(each.lengths for each in chunks)])
    values = torch.cat([each.values for each in chunks])
    return Ragged(values, lengths.cumsum(0), chunks[0].padding)
