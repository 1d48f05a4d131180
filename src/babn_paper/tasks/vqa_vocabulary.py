"""Words of questions and the answers to choose from, in one tokenizer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from babn.errors import FormatError
from babn.text.word_tokenizer import word_tokenizer
from babn_paper.tasks.task import Tokenizer

KEY = "visual_questions"
"""The tokenizer's setting that holds what is not words."""

_DROPPED = re.compile(r"[.,'!?\"()*#:;]")
_PARTING = re.compile(r"[-/]")


@dataclass(frozen=True)
class Choices:
    """What a model answers with, and what it looks at.

    Attributes:
        answers: In the order of the model's outputs.
        regions: The most regions of an image.
        size: Size of a region's features.
    """

    answers: Sequence[str]
    regions: int
    size: int


def question_words(question: str) -> str:
    """A question as MCAN reads it: small letters, without punctuation."""
    words = _PARTING.sub(" ", _DROPPED.sub("", question.lower())).split()
    return " ".join(words) or UNKNOWN


UNKNOWN = "[UNK]"
"""Stands for a question in which there is no word at all."""


def question_tokenizer(
    questions: Iterable[str], most: int | None = None, further: Iterable[str] = ()
) -> Tokenizer:
    """A tokenizer of single words, with nothing before and after a question.

    Args:
        questions: From which words are taken.
        most: Words in the vocabulary; the most frequent ones, if there are more.
        further: Words that fill it up to `most`.
    """
    texts = map(question_words, questions)
    return word_tokenizer(texts, most, further, marked=False)


def keep_choices(tokenizer: Tokenizer, choices: Choices) -> None:
    """Puts the answers beside the words."""
    tokenizer.init_kwargs[KEY] = asdict(choices)


def choices_of(tokenizer: Tokenizer) -> Choices:
    """The answers that belong to a tokenizer."""
    found: dict[str, Any] | None = tokenizer.init_kwargs.get(KEY)
    if found is None:
        raise FormatError("The tokenizer knows no answers. Give a run of a task with images.")
    return Choices(**found)
