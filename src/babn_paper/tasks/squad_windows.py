"""Questions with their paragraphs as windows of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from babn.errors import ConfigError
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.ragged import Ragged
from babn_paper.tasks.span_places import answer_spans, locate
from babn_paper.tasks.squad_files import Question
from babn_paper.tasks.task import Tokenizer

DOC_STRIDE = 128
"""Tokens that neighbouring windows share."""

QUESTION_TOKENS = 64
"""Longer questions are cut, as the official script of BERT does."""

LEAST_LENGTH = 16

CHUNK = 500
"""Questions that are tokenized at once; more would only take more memory."""

POSITIONS = ("start_positions", "end_positions")
TYPES = {"input_ids": "i4", "attention_mask": "i1", "token_type_ids": "i1"}
OFFSETS = ("context_starts", "context_ends")

Columns = dict[str, np.ndarray]


def encode_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    max_length: int,
    doc_stride: int,
    training: bool,
) -> Encoded:
    """A question and a part of its paragraph in each row.

    In training, `start_positions` and `end_positions` are the answer's first and last token, or the
    first token of a window that does not hold the answer. Otherwise the side tensors tell what the
    windows mean: `question` is the place of each one's question, `context_starts` and
    `context_ends` are the characters of each token.

    Args:
        questions: What to encode.
        tokenizer: A fast tokenizer that pads on the right.
        max_length: The most tokens of a window.
        doc_stride: Tokens that neighbouring windows share, fewer where windows are short.
        training: Whether answers are wanted.
    """
    windows = _Windows.of(tokenizer, max_length, doc_stride)
    chunks = [
        windows.columns(questions[start : start + CHUNK], start, training)
        for start in range(0, len(questions), CHUNK)
    ]
    columns = {name: np.concatenate([each[name] for each in chunks]) for name in chunks[0]}
    ragged = _inputs(columns, tokenizer)
    if training:
        return Encoded(ragged, {name: torch.from_numpy(columns[name]) for name in POSITIONS})
    side: dict[str, Ragged | Tensor] = {
        name: _ragged(columns[name], columns["lengths"], -1) for name in OFFSETS
    }
    return Encoded(ragged, {}, side | {"question": torch.from_numpy(columns["question"])})


def _inputs(columns: Columns, tokenizer: Tokenizer) -> dict[str, Ragged]:
    """The arguments of the model, of which some tokenizers make no `token_type_ids`."""
    padding = {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }
    return {
        name: _ragged(columns[name], columns["lengths"], value)
        for name, value in padding.items()
        if name in columns
    }


@dataclass(frozen=True)
class _Windows:
    """How windows are cut.

    Attributes:
        tokenizer: A fast tokenizer.
        max_length: The most tokens of a window.
        question_tokens: The most tokens of a question.
        overlap: Tokens that neighbouring windows share.
    """

    tokenizer: Any
    max_length: int
    question_tokens: int
    overlap: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_length: int, doc_stride: int) -> "_Windows":
        """Refuses what cannot work."""
        if not getattr(tokenizer, "is_fast", False) or tokenizer.padding_side != "right":
            raise ConfigError(
                f"{type(tokenizer).__name__} is slow or pads on the left. Give a fast tokenizer "
                "that pads on the right, such as those of BERT, ALBERT and RoBERTa."
            )
        if tokenizer.pad_token_id is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} has no padding token. Set its pad_token."
            )
        if max_length < LEAST_LENGTH:
            raise ConfigError(
                f"max_length={max_length} has no room for a question and its paragraph. Give "
                f"{LEAST_LENGTH} or more."
            )
        room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
        question_tokens = min(QUESTION_TOKENS, room // 2)
        overlap = min(doc_stride, (room - question_tokens) // 2)
        return cls(tokenizer, max_length, question_tokens, overlap)

    def columns(self, questions: Sequence[Question], place: int, training: bool) -> Columns:
        """The windows of some questions, of which the first has that place, all rows joined."""
        found = self._tokenized(questions)
        owner = np.array(found["overflow_to_sample_mapping"])
        lengths = np.array([len(row) for row in found["input_ids"]])
        total = int(lengths.sum())
        columns = {
            name: np.fromiter(chain.from_iterable(found[name]), dtype, total)
            for name, dtype in TYPES.items()
            if name in found
        }
        columns |= {"lengths": lengths, "question": owner + place}
        starts, ends = self._context_offsets(found, total)
        if training:
            return columns | _positions(questions, owner, lengths, starts, ends)
        return columns | dict(zip(OFFSETS, (starts, ends), strict=True))

    def _tokenized(self, questions: Sequence[Question]) -> Any:
        return self.tokenizer(
            self._cut([question.text for question in questions]),
            [question.context for question in questions],
            truncation="only_second",
            max_length=self.max_length,
            stride=self.overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=True,
        )

    def _cut(self, texts: list[str]) -> list[str]:
        """Questions without what goes beyond the most tokens."""
        found = self.tokenizer(
            texts,
            add_special_tokens=False,
            truncation=True,
            max_length=self.question_tokens,
            return_offsets_mapping=True,
        )
        offsets = found["offset_mapping"]
        return [
            text[: places[-1][1]] if len(places) == self.question_tokens else text
            for text, places in zip(texts, offsets, strict=True)
        ]

    @staticmethod
    def _context_offsets(found: Any, total: int) -> tuple[np.ndarray, np.ndarray]:
        sequences = (each.sequence_ids for each in found.encodings)
        outside = np.array(list(chain.from_iterable(sequences)), dtype=object) != 1
        characters = chain.from_iterable(chain.from_iterable(found["offset_mapping"]))
        offsets = np.fromiter(characters, "i4", 2 * total).reshape(-1, 2)
        offsets[outside] = -1
        return offsets[:, 0].copy(), offsets[:, 1].copy()


def _positions(
    questions: Sequence[Question],
    owner: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
) -> Columns:
    """Where the first answer lies in each window; at the first token where it does not."""
    rows, longest = torch.arange(len(lengths)), int(lengths.max())
    padded = [_ragged(each, lengths, -1).pad(rows, longest) for each in (starts, ends)]
    spans = answer_spans(questions)[torch.from_numpy(owner), :1]
    found = locate(padded[0], padded[1], spans)[:, 0].clamp(min=0).numpy()
    return {name: found[:, i] for i, name in enumerate(POSITIONS)}


def _ragged(values: np.ndarray, lengths: np.ndarray, padding: int) -> Ragged:
    offsets = np.concatenate([[0], lengths.cumsum()])
    return Ragged(torch.from_numpy(values), torch.from_numpy(offsets), padding)
