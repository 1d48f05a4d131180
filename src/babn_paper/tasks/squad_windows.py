"""Encodes questions with their paragraphs as windows of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from babn.errors import ConfigError
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.squad_files import Answer, Question
from babn_paper.tasks.task import Tokenizer
from babn_paper.tasks.text_task import padding_values

Offsets = Int[Tensor, "window token"]
"""Start or end of each token's characters in the context; -1 for tokens outside the context."""


def locate(
    starts: Offsets, ends: Offsets, spans: Int[Tensor, "window span 2"]
) -> Int[Tensor, "window span 2"]:
    """Finds the first and last token of spans; -1 if the window does not contain the span.

    Args:
        starts: Start of each token.
        ends: End of each token.
        spans: First character of each span, and the one after the last; -1 for no span.
    """
    # Tokens without characters, such as a lone space marker, are in no answer.
    context = (ends > starts)[:, None]
    begin, stop = spans.unsqueeze(-1).unbind(2)
    first = (context & (ends[:, None] > begin)).int().argmax(-1)
    backward = (context & (starts[:, None] < stop)).flip(-1).int().argmax(-1)
    last = starts.shape[1] - 1 - backward
    lowest = starts.where(context[:, 0], torch.iinfo(starts.dtype).max).amin(-1, keepdim=True)
    inside = (begin[..., 0] >= lowest) & (stop[..., 0] <= ends.amax(-1, keepdim=True))
    inside &= (begin[..., 0] >= 0) & (first <= last)
    return torch.stack([first, last], -1).where(inside.unsqueeze(-1), -1)


def answer_spans(questions: Sequence[Question]) -> Int[Tensor, "question span 2"]:
    """Returns the characters of the answers to each question, padded with -1."""
    rows = [[_characters(each) for each in question.answers] for question in questions]
    most = max(1, *map(len, rows))
    return torch.tensor([row + [(-1, -1)] * (most - len(row)) for row in rows])


def _characters(answer: Answer) -> tuple[int, int]:
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())
    return begin, begin + len(answer.text.strip())


DOC_STRIDE = 128
"""Number of tokens that neighbouring windows share."""

QUESTION_TOKENS = 64
"""Maximum length of a question, as in the official script of BERT."""

LEAST_LENGTH = 16

CHUNK = 500
"""Questions per call of the tokenizer, which bounds its memory."""

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
    """Encodes each question with windows over its paragraph.

    In training, `start_positions` and `end_positions` are the answer's first and last token, or the
    first token if the window does not contain the answer. Otherwise the side tensors describe the
    windows: `question` is the index of a window's question, and `context_starts` and `context_ends`
    are the characters of each token.

    Args:
        questions: The questions.
        tokenizer: A fast tokenizer that pads on the right.
        max_length: Maximum number of tokens of a window.
        doc_stride: Number of tokens that neighbouring windows share, fewer if windows are short.
        training: Whether to return answer positions instead of side tensors.
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
    """Returns the model's arguments; some tokenizers make no `token_type_ids`."""
    return {
        name: _ragged(columns[name], columns["lengths"], value)
        for name, value in padding_values(tokenizer).items()
        if name in columns
    }


@dataclass(frozen=True)
class _Windows:
    """Splits paragraphs into windows.

    Attributes:
        tokenizer: A fast tokenizer.
        max_length: Maximum number of tokens of a window.
        question_tokens: Maximum number of tokens of a question.
        overlap: Number of tokens that neighbouring windows share.
    """

    tokenizer: Any
    max_length: int
    question_tokens: int
    overlap: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_length: int, doc_stride: int) -> "_Windows":
        """Validates the tokenizer and the length."""
        if not getattr(tokenizer, "is_fast", False) or tokenizer.padding_side != "right":
            raise ConfigError(
                f"{type(tokenizer).__name__} is slow or pads on the left. Give a fast tokenizer "
                "that pads on the right, such as those of BERT, ALBERT and RoBERTa."
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

    def columns(self, questions: Sequence[Question], first: int, training: bool) -> Columns:
        """Returns the windows of some questions, all rows concatenated.

        Args:
            questions: The questions.
            first: Index of the first question.
            training: Whether to return answer positions instead of offsets.
        """
        found = self._tokenized(questions)
        places, lengths, owner = self._split(found)
        columns = {
            name: _flat(found[name], dtype)[places]
            for name, dtype in TYPES.items()
            if name in found
        }
        columns |= {"lengths": lengths, "question": owner + first}
        starts, ends = (each[places] for each in _context_offsets(found))
        if training:
            return columns | _positions(questions, owner, lengths, starts, ends)
        return columns | dict(zip(OFFSETS, (starts, ends), strict=True))

    def _tokenized(self, questions: Sequence[Question]) -> Any:
        return self.tokenizer(
            self._cut([question.text for question in questions]),
            [question.context for question in questions],
            return_offsets_mapping=True,
            return_attention_mask=True,
            verbose=False,  # no warning of rows longer than the model allows
        )

    def _split(self, found: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the places of the windows' tokens, the windows' lengths, and their questions.

        Places count through all rows. `return_overflowing_tokens` is not used: tokenizers 0.23.1
        and 0.23.2 drop all windows after the second.
        """
        windows: list[np.ndarray] = []
        owner: list[int] = []
        before = 0
        for i, encoding in enumerate(found.encodings):
            row = np.arange(before, before + len(encoding))
            mine = self._windows(row, np.array(encoding.sequence_ids, dtype=object) == 1)
            windows += mine
            owner += [i] * len(mine)
            before += len(encoding)
        lengths = np.array([len(window) for window in windows])
        return np.concatenate(windows), lengths, np.array(owner)

    def _windows(self, row: np.ndarray, in_context: np.ndarray) -> list[np.ndarray]:
        """Splits a row; each window has all tokens outside the context."""
        if len(row) <= self.max_length:
            return [row]
        first, count = int(in_context.argmax()), int(in_context.sum())
        head, context, tail = np.split(row, [first, first + count])
        size = self.max_length - len(head) - len(tail)
        # A question cut within a character of several tokens is a little longer than planned.
        overlap = min(self.overlap, size - 1)
        return [
            np.concatenate([head, context[start : start + size], tail])
            for start in range(0, count - overlap, size - overlap)
        ]

    def _cut(self, texts: list[str]) -> list[str]:
        """Truncates questions to the maximum number of tokens."""
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


def _flat(rows: Any, dtype: str) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), dtype, sum(map(len, rows)))


def _context_offsets(found: Any) -> tuple[np.ndarray, np.ndarray]:
    sequences = (each.sequence_ids for each in found.encodings)
    outside = np.array(list(chain.from_iterable(sequences)), dtype=object) != 1
    offsets = _flat(list(chain.from_iterable(found["offset_mapping"])), "i4").reshape(-1, 2)
    offsets[outside] = -1
    return offsets[:, 0], offsets[:, 1]


def _positions(
    questions: Sequence[Question],
    owner: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
) -> Columns:
    """Finds the first answer in each window; the first token if the window does not contain it."""
    rows, longest = torch.arange(len(lengths)), int(lengths.max())
    padded = [_ragged(each, lengths, -1).pad(rows, longest) for each in (starts, ends)]
    spans = answer_spans(questions)[torch.from_numpy(owner), :1]
    found = locate(padded[0], padded[1], spans)[:, 0].clamp(min=0).numpy()
    return {name: found[:, i] for i, name in enumerate(POSITIONS)}


def _ragged(values: np.ndarray, lengths: np.ndarray, padding: int) -> Ragged:
    offsets = np.concatenate([[0], lengths.cumsum()])
    return Ragged(torch.from_numpy(values), torch.from_numpy(offsets), padding)
