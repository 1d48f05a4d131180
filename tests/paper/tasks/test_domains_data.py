"""The texts of two domains that come with the package."""

from collections import Counter
from importlib.resources import files
from itertools import combinations

import pytest

from babn_paper.tasks.domains import COMMONSENSE, TASKS, DomainTask

FOLDER = files("babn_paper.data").joinpath("domains")
SIZES = {"train": 48, "dev": 24, "test": 24, "out": 24}


def named(value: object) -> str | None:
    return value.name if isinstance(value, DomainTask) else None


@pytest.mark.parametrize("part", SIZES)
@pytest.mark.parametrize("task", TASKS.values(), ids=named)
def test_parts_are_complete_and_balanced(task: DomainTask, part: str) -> None:
    assert task.has("builtin", part)
    found = task.read("builtin", part)
    halved = (task.name, part) == ("paraphrase", "out")  # as the paper does with TwitterURL
    size = SIZES[part] // 2 if halved else SIZES[part]
    assert (found.name, found.origin, len(found.examples)) == (part, "builtin", size)
    counts = Counter(each.label for each in found.examples)
    assert len(counts) == len(task.target.names) and len(set(counts.values())) == 1


@pytest.mark.parametrize("task", TASKS.values(), ids=named)
def test_parts_share_no_row_and_no_first_text(task: DomainTask) -> None:
    parts = [task.read("builtin", part).examples for part in SIZES]
    rows = [tuple(map(str.lower, each.texts)) for part in parts for each in part]
    assert [row for row, count in Counter(rows).items() if count > 1] == []
    for one, other in combinations(parts, 2):
        assert not {each.texts[0] for each in one} & {each.texts[0] for each in other}


def test_endings_differ_and_right_ones_are_new_in_every_part() -> None:
    parts = [COMMONSENSE.read("builtin", part).examples for part in SIZES]
    assert all(len(set(each.texts)) == 5 for part in parts for each in part)
    right = [each.texts[1 + int(each.label)] for part in parts for each in part]
    assert len(set(right)) == len(right)


@pytest.mark.parametrize("task", TASKS.values(), ids=named)
def test_the_other_domain_has_other_words(task: DomainTask) -> None:
    words = {
        part: {
            word
            for text in task.texts(task.read("builtin", part).examples)
            for word in text.lower().split()
        }
        for part in SIZES
    }
    known = {part: len(words[part] & words["train"]) / len(words[part]) for part in SIZES}
    assert known["out"] < 0.8 * min(known["dev"], known["test"])


def test_tables_are_clean_utf8_with_a_licence() -> None:
    paths = [path for task in FOLDER.iterdir() if task.is_dir() for path in task.iterdir()]
    assert len(paths) == 12
    for path in paths:
        text = path.read_bytes().decode("utf-8")
        assert text.endswith("\n") and not {"\r", "\ufeff", "\ufffd"} & set(text)
        assert all(cell == cell.strip() != "" for cell in text.replace("\n", "\t").split("\t")[:-1])
    assert "CC0" in FOLDER.joinpath("LICENSE").read_text(encoding="utf-8")
