"""Short requests to a phone assistant: 16 intents, out-of-scope texts and ambiguous ones."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

Split = Literal["train", "dev", "test"]


@dataclass(frozen=True)
class Labelled:
    """Texts and the indices of their intents."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)


def intent_names() -> tuple[str, ...]:
    """The intents in alphabetical order; labels are indices into it."""
    return tuple(sorted({row["intent"] for row in _rows("in_scope.tsv")}))


def in_scope(split: Split) -> Labelled:
    """The texts of a split that have one of the intents."""
    index = {name: i for i, name in enumerate(intent_names())}
    rows = [row for row in _rows("in_scope.tsv") if row["split"] == split]
    return Labelled(tuple(row["text"] for row in rows), tuple(index[row["intent"]] for row in rows))


def out_of_scope(split: Literal["dev", "test"]) -> tuple[str, ...]:
    """The texts of a split that have none of the intents; the training split has no such texts."""
    return tuple(row["text"] for row in _rows("out_of_scope.tsv") if row["split"] == split)


def ambiguous() -> tuple[str, ...]:
    """Texts that two intents fit equally well; they are in no split."""
    return tuple(row["text"] for row in _rows("ambiguous.tsv"))


def _rows(name: str) -> Iterator[dict[str, str]]:
    """The rows of a table, by column name."""
    text = files("babn.data").joinpath("intents", name).read_text(encoding="utf-8")
    # Quotation marks in texts are not CSV quotes.
    return csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
