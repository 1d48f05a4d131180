"""HellaSWAG's two domains, where there is no SWAG."""

from itertools import groupby
from pathlib import Path

import pytest
from domain_cases import HELLASWAG, SWAG, table

from babn.errors import DataError
from babn_paper.tasks.domain_data import split_rows
from babn_paper.tasks.domains import COMMONSENSE, NLI
from babn_paper.tasks.reading import Row

PARTS = ("train", "dev", "test", "out")


def row(domain: str, activity: int, number: int) -> str:
    return f"{domain}|act {activity}|{domain} {number}|a|b|c|d|{number % 4}"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Videos of three rows each, and instructions between them."""
    lines = [row("activitynet", i // 3, i) for i in range(60)]
    lines[30:30] = [row("wikihow", 99, i) for i in range(25)]
    table(tmp_path / "hellaswag/val.tsv", HELLASWAG, *lines)
    table(tmp_path / "hellaswag/test_unlabelled.tsv", "context", "never read")
    return tmp_path


def test_the_source_is_divided_and_the_target_is_whole(mixed: Path) -> None:
    parts = {part: COMMONSENSE.read(str(mixed), part) for part in PARTS}
    assert all(COMMONSENSE.has(str(mixed), part) for part in PARTS)
    texts = {name: [each.texts[0] for each in part.examples] for name, part in parts.items()}
    assert texts["out"] == [f"wikihow {i}" for i in range(25)]
    source = texts["train"] + texts["dev"] + texts["test"]
    assert sorted(source) == sorted(f"activitynet {i}" for i in range(60))
    assert [len(texts[name]) for name in ("train", "dev", "test")] == [42, 6, 12]
    path = mixed / "hellaswag/val.tsv"
    assert parts["train"].origin == f"{path}, activitynet, train"
    assert parts["out"].origin == f"{path}, wikihow, test" and parts["out"].name == "out"
    assert len({part.fingerprint for part in parts.values()}) == 4


def test_tables_name_what_stood_in(mixed: Path) -> None:
    origin = COMMONSENSE.read(str(mixed), "train").origin
    assert COMMONSENSE.title_of(origin) == "HellaSWAG, ActivityNet to WikiHow"
    assert COMMONSENSE.title_of("DIR/swag/train.tsv") == "SWAG to HellaSWAG"
    assert NLI.title_of(origin) == "SNLI to MNLI"


def test_rows_of_one_video_stay_together(mixed: Path) -> None:
    for part in ("train", "dev", "test"):
        found = COMMONSENSE.read(str(mixed), part).examples
        numbers = [int(each.texts[0].split()[1]) // 3 for each in found]
        assert {len(list(group)) for _, group in groupby(numbers)} == {3}


def test_the_division_is_always_the_same() -> None:
    rows = [Row({"activity": i // 2, "number": i}, "") for i in range(20)]
    shares = split_rows(rows)
    assert split_rows(rows) == shares
    assert [row.get("number") for row in shares["test"]] == [14, 15, 16, 17]
    assert [row.get("number") for row in shares["dev"]] == [2, 3]


def test_with_swag_in_the_folder_nothing_stands_in(mixed: Path) -> None:
    table(mixed / "swag/train.tsv", SWAG, "a|b|c|d|e|f|1")
    assert len(COMMONSENSE.read(str(mixed), "train").examples) == 1
    assert len(COMMONSENSE.read(str(mixed), "out").examples) == 85 // 2
    assert not COMMONSENSE.has(str(mixed), "test")


def test_data_that_cannot_stand_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folder 'hellaswag'"):
        COMMONSENSE.read(str(tmp_path), "train")
    assert not COMMONSENSE.has(str(tmp_path), "train")
    lines = HELLASWAG, row("activitynet", 0, 0), row("youtube", 0, 1)
    table(tmp_path / "hellaswag/val.tsv", *lines)
    with pytest.raises(DataError, match=r"val\.tsv:3: domain='youtube' is not known"):
        COMMONSENSE.read(str(tmp_path), "train")
    table(tmp_path / "hellaswag/val.tsv", SWAG, "a|b|c|d|e|f|1")
    with pytest.raises(DataError, match="has no column 'domain'"):
        COMMONSENSE.read(str(tmp_path), "train")
    without = [line.split("|", 2)[0] + "|" + line.split("|", 2)[2] for line in lines[:2]]
    table(tmp_path / "hellaswag/val.tsv", *without)
    with pytest.raises(DataError, match=r"val\.tsv:2: there is no column 'activity'"):
        COMMONSENSE.read(str(tmp_path), "train")
