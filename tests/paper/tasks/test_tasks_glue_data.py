"""The texts that come with the package: complete, clean, and with no row in two parts."""

from collections import Counter
from importlib.resources import files

import pytest

from babn_paper.tasks.glue import TASKS, GlueTask

FOLDER = files("babn_paper.data").joinpath("glue")
PARTS = [(task, part) for task in TASKS.values() for part in ("train", *task.test_parts)]


def named(value: object) -> str | None:
    return value.name if isinstance(value, GlueTask) else None


@pytest.mark.parametrize(("task", "part"), PARTS, ids=named)
def test_parts_are_complete_and_balanced(task: GlueTask, part: str) -> None:
    assert task.has("builtin", part)
    found = task.read("builtin", part)
    assert (found.name, found.origin) == (part, "builtin")
    assert len(found.examples) >= (60 if part == "train" else 30)
    assert all(len(each.texts) == len(task.columns) for each in found.examples)
    counts = Counter(each.label for each in found.examples).values()
    assert task.name == "stsb" or max(counts) == min(counts)


@pytest.mark.parametrize("task", TASKS.values(), ids=named)
def test_no_row_appears_twice(task: GlueTask) -> None:
    parts = [task.read("builtin", part) for part in ("train", *task.test_parts)]
    texts = [tuple(map(str.lower, each.texts)) for part in parts for each in part.examples]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


@pytest.mark.parametrize("task", TASKS.values(), ids=named)
def test_first_texts_of_pairs_are_new_in_dev(task: GlueTask) -> None:
    train, dev = (task.read("builtin", part).examples for part in ("train", "dev"))
    assert not {each.texts[0] for each in train} & {each.texts[0] for each in dev}


@pytest.mark.parametrize("task", TASKS.values(), ids=named)
def test_tables_are_clean_utf8(task: GlueTask) -> None:
    for path in FOLDER.joinpath(task.name).iterdir():
        text = path.read_bytes().decode("utf-8")
        assert text.endswith("\n") and not {"\r", "\ufeff", "\ufffd"} & set(text)
        assert all(cell == cell.strip() != "" for cell in text.replace("\n", "\t").split("\t")[:-1])


def test_licence_is_there() -> None:
    assert "CC0" in FOLDER.joinpath("LICENSE").read_text(encoding="utf-8")
