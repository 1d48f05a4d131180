"""Which words of a text were changed."""

from collections.abc import Iterator
from difflib import SequenceMatcher


def aligned(before: str, after: str) -> Iterator[tuple[list[str], list[str], bool]]:
    """Stretches of words of both texts in order, and whether they differ."""
    old, new = before.split(), after.split()
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield old[i:j], new[k:m], tag != "equal"


def words_changed(before: str, after: str) -> int:
    """How many words of a text were changed; a word cut in two or put in counts once."""
    return sum(max(len(old), 1) for old, _, differ in aligned(before, after) if differ)


def count_words(text: str) -> int:
    """How many words a text has."""
    return len(text.split())
