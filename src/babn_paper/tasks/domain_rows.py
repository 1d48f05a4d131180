"""What the rows of the data sets of several domains hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from babn.errors import DataError
from babn_paper.tasks.lines import Row
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.text_task import TextExample, read_texts

Reader = Callable[[Row], TextExample | None]
"""Makes an example of a row, or nothing of a row that does not count."""

ENDINGS = Classes(("0", "1", "2", "3"))
"""The endings of SWAG and HellaSWAG have no names."""

UNDECIDED = {"-", "-1"}
"""How SNLI and MNLI write that people did not agree on a label."""

CONTEXTS = ("sent1", "ctx_a", "context")
STARTS = ("sent2", "ctx_b")
"""What SWAG, HellaSWAG and plain files call a text, and the words that all its endings share."""


@dataclass(frozen=True)
class PairReader:
    """Reads rows that hold a pair of texts and a class.

    Attributes:
        columns: Where the texts stand.
        target: The classes.
        drop_undecided: Whether rows do not count on whose label people did not agree; else they
            are refused.
    """

    columns: tuple[str, str]
    target: Classes
    drop_undecided: bool = False

    def __call__(self, row: Row) -> TextExample | None:
        """The pair, unless it does not count."""
        if self.drop_undecided and str(row.values.get("label")).strip() in UNDECIDED:
            return None
        return TextExample(read_texts(row, self.columns), self.target.read(row))


def read_endings(row: Row) -> TextExample:
    """A text and its endings, each after the words that all of them begin with."""
    context = row.text(_first(row, CONTEXTS))
    start = next((str(row.values[name]).strip() for name in STARTS if name in row.values), "")
    endings = [f"{start} {ending}".strip() for ending in _endings(row)]
    return TextExample((context, *endings), ENDINGS.read(row))


def unfolded(rows: Sequence[Row]) -> list[Row]:
    """Pairs from rows that hold lists of them, in which form TwitterURL is on the hub."""
    return [
        Row({"sentence1": one, "sentence2": other, "label": label}, f"{row.place}:{number}")
        for row in rows
        for number, (one, other, label) in enumerate(
            zip(row.get("sent1"), row.get("sent2"), row.get("labels"), strict=True), 1
        )
    ]


def _endings(row: Row) -> list[str]:
    count = len(ENDINGS.names)
    if "endings" not in row.values:
        return [row.text(f"ending{i}") for i in range(count)]
    found = row.values["endings"]
    if len(found) != count or not all(isinstance(text, str) and text.strip() for text in found):
        raise DataError(f"{row.place}: endings={found!r} are not {count} texts. Give {count}.")
    return list(found)


def _first(row: Row, columns: Sequence[str]) -> str:
    found = next((name for name in columns if name in row.values), None)
    if found is None:
        wanted = " or ".join(map(repr, columns))
        raise DataError(
            f"{row.place}: there is no column {wanted}, only {sorted(row.values)}. Rename the "
            "column."
        )
    return found
