"""Sentences as tensors."""

from collections.abc import Sequence

from babn.errors import DataError
from babn_paper.models.translation_parts import IGNORED
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.ragged import Ragged
from babn_paper.tasks.task import Part, Tokenizer
from babn_paper.tasks.text_encoding import encode_texts
from babn_paper.tasks.translation.pairs import SentencePair

UNCUT = 10**6
"""More pieces than any sentence has."""


def encode_sources(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Pieces of sentences with their ends, cut where they are too long."""
    found = encode_texts([(text,) for text in texts], tokenizer, max_length)
    return Encoded({"input_ids": found["input_ids"]}, {})


def encode_pairs(part: Part[SentencePair], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Pieces of sources and targets, without the pairs of which one is too long.

    What is left of a pair when both sides are cut need not belong together.
    """
    sides = [
        encode_texts([(text,) for text in texts], tokenizer, UNCUT)["input_ids"]
        for texts in zip(*((each.source, each.target) for each in part.examples), strict=True)
    ]
    short = (sides[0].lengths <= max_length) & (sides[1].lengths <= max_length)
    if not short.any():
        raise DataError(
            f"{part.origin}: no pair has at most {max_length} pieces on both sides. Raise "
            "max_length."
        )
    source, target = (_chosen(side, short.nonzero().flatten().tolist()) for side in sides)
    labels = Ragged(target.values, target.offsets, IGNORED)
    return Encoded({"input_ids": source, "labels": labels}, {})


def _chosen(rows: Ragged, chosen: Sequence[int]) -> Ragged:
    if len(chosen) == len(rows.lengths):
        return rows
    values, ends = rows.values.tolist(), rows.offsets.tolist()
    return Ragged.of([values[ends[i] : ends[i + 1]] for i in chosen], rows.padding)
