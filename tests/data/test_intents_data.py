"""The intents data is complete, balanced and without duplicates."""

import csv
from collections import Counter
from importlib.resources import files

import pytest

from babn.data import intents

FOLDER = files("babn.data").joinpath("intents")
TABLES = ("in_scope.tsv", "out_of_scope.tsv", "ambiguous.tsv")


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a table."""
    lines = FOLDER.joinpath(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_sixteen_intents_in_alphabetical_order() -> None:
    names = intents.intent_names()
    assert len(names) == 16
    assert list(names) == sorted(names)


@pytest.mark.parametrize(("split", "each"), [("train", 38), ("dev", 8), ("test", 16)])
def test_every_intent_has_as_many_texts(split: intents.Split, each: int) -> None:
    data = intents.in_scope(split)
    assert len(data) == 16 * each
    assert Counter(data.labels) == {label: each for label in range(16)}


@pytest.mark.parametrize(("split", "each"), [("dev", 50), ("test", 100)])
def test_out_of_scope_texts_are_near_and_far(split: str, each: int) -> None:
    found = [row for row in rows("out_of_scope.tsv") if row["split"] == split]
    assert Counter(row["kind"] for row in found) == {"near": each, "far": each}
    assert intents.out_of_scope(split) == tuple(row["text"] for row in found)


def test_ambiguous_texts_have_two_known_intents() -> None:
    names = set(intents.intent_names())
    found = rows("ambiguous.tsv")
    assert len(found) == 130
    assert intents.ambiguous() == tuple(row["text"] for row in found)
    fitting = [set(row["intents"].split("|")) for row in found]
    assert all(each <= names and len(each) == 2 for each in fitting)


def test_labels_are_those_of_the_table() -> None:
    names = intents.intent_names()
    data = intents.in_scope("train")
    row = data.texts.index("my card got swallowed by the cash machine on Mill Road")
    assert names[data.labels[row]] == "card_lost"


def test_no_text_appears_twice() -> None:
    texts = [
        *(text for split in ("train", "dev", "test") for text in intents.in_scope(split).texts),
        *(text for split in ("dev", "test") for text in intents.out_of_scope(split)),
        *intents.ambiguous(),
    ]
    normal = Counter(" ".join(text.lower().split()) for text in texts)
    assert [text for text, count in normal.items() if count > 1] == []


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_clean_utf8(name: str) -> None:
    text = FOLDER.joinpath(name).read_bytes().decode("utf-8")
    assert text.endswith("\n")
    assert not {"\r", "\ufeff", "\ufffd"} & set(text)
    columns = text.splitlines()[0].count("\t")
    for line in text.splitlines():
        assert line.count("\t") == columns
        assert all(cell and cell == cell.strip() for cell in line.split("\t"))


def test_licence_is_there() -> None:
    assert "CC0" in FOLDER.joinpath("LICENSE").read_text(encoding="utf-8")
