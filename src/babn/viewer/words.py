"""The tokens of a text as a person reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Tokenizer = Any
"""A tokenizer of transformers, which has no type of its own."""

BEFORE = "a"
"""A word to put before a token, to see whether the tokenizer joins the two."""


@dataclass(frozen=True)
class Word:
    """One token.

    Attributes:
        text: What to show.
        special: Whether it stands for no text, such as `[CLS]`.
        joined: Whether it goes on with the word before it.
    """

    text: str
    special: bool = False
    joined: bool = False

    @property
    def plain(self) -> list[str | int]:
        """Text and flags: 1 for special, 2 for joined."""
        return [self.text, self.special + 2 * self.joined]


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Word]:
    """The tokens with these numbers; a number that stands for none is shown itself."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    words: list[Word] = []
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if token is None or number in special:
            words.append(Word(token or f"#{number}", special=True))
        else:
            first = not words or words[-1].special
            words.append(_word(tokenizer, token, first))
    return words


def _word(tokenizer: Tokenizer, token: str, first: bool) -> Word:
    """A token as the tokenizer itself would write it after another word."""
    if token == tokenizer.unk_token:
        return Word(token)
    written: str = tokenizer.convert_tokens_to_string([BEFORE, token]).removeprefix(BEFORE)
    text = written.strip()
    joined = bool(text) and not first and not written[0].isspace() and text[0].isalnum()
    return Word(text or token, joined=joined)
