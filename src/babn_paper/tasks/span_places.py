"""Spans of characters as spans of tokens."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from babn_paper.tasks.squad_files import Answer, Question

Offsets = Int[Tensor, "window token"]
"""Where the characters of a token begin or end in the context; -1 for tokens outside it."""


def locate(
    starts: Offsets, ends: Offsets, spans: Int[Tensor, "window span 2"]
) -> Int[Tensor, "window span 2"]:
    """First and last token of spans of characters; -1 where the window does not hold the span.

    Args:
        starts: Where tokens begin.
        ends: Where tokens end.
        spans: The first character, and the one after the last; -1 for no span.
    """
    # Tokens that stand for no character, such as a lone mark of a space, are in no answer.
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
    """The characters of the answers to each question; -1 where others have more answers."""
    rows = [[_characters(each) for each in question.answers] for question in questions]
    most = max(1, *map(len, rows))
    return torch.tensor([row + [(-1, -1)] * (most - len(row)) for row in rows])


def _characters(answer: Answer) -> tuple[int, int]:
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())
    return begin, begin + len(answer.text.strip())
