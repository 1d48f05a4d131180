"""Data files: where they are, what is in them, and what is refused."""

import gzip
from pathlib import Path

import pytest

from babn.errors import DataError
from babn_paper.tasks.reading import find_file, find_files, fingerprint, read_rows, task_folder


def test_quotation_marks_mean_nothing_and_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv.gz"
    path.write_bytes(gzip.compress(b'text\tlabel\r\n"open\t1\r\n'))
    (row,) = read_rows(path)
    assert row.values == {"text": '"open', "label": "1"} and row.place == f"{path}:2"


def test_objects_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text('{"text": "caf\\u00e9", "label": 1}\n', encoding="utf-8")
    (row,) = read_rows(path)
    assert row.values == {"text": "café", "label": 1} and row.text("text") == "café"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.tsv", b"a\tb\n1\t2\n1\n", r"dev\.tsv:3: 1 columns where the header has 2"),
        ("dev.tsv", b"a\tb\n", "has no rows"),
        ("dev.tsv", b"", "has no rows"),
        ("dev.tsv", b"a\n\xff\n", "not UTF-8"),
        ("dev.tsv.gz", gzip.compress(b"a\nb\n", mtime=0)[:-9], "is damaged"),
        ("dev.tsv.gz", b"a\nb\n", "is damaged"),
        ("dev.jsonl", b'{"a": 1}\n{"a"\n', r"dev\.jsonl:2: not JSON"),
        ("dev.jsonl", b"[1]\n", r"dev\.jsonl:1: not a JSON object"),
        ("dev.tsv", b"a\tb\ta\n1\t2\t3\n", r"dev\.tsv:1: there are 2 columns 'a'"),
        ("dev.jsonl", b'{"a": 1, "a": 2}\n', r"dev\.jsonl:1: not JSON: the key 'a' occurs twice"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / name)


def test_the_folder_of_a_task_or_of_all(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    assert task_folder(str(tmp_path), "rte") == tmp_path / "rte"
    assert task_folder(str(tmp_path / "rte"), "rte") == tmp_path / "rte"
    with pytest.raises(DataError, match="is not a folder"):
        task_folder(str(tmp_path / "none"), "rte")


def test_files_are_found_by_name_or_beginning(tmp_path: Path) -> None:
    for name in ("train_subset.tsv.gz", "dev.tsv", "dev_other.tsv", "trainers.tsv"):
        (tmp_path / name).touch()
    assert find_file(tmp_path, "train").name == "train_subset.tsv.gz"
    assert find_file(tmp_path, "dev").name == "dev.tsv"
    with pytest.raises(DataError, match="no file for 'test'"):
        find_file(tmp_path, "test")
    (tmp_path / "dev.jsonl").touch()
    with pytest.raises(DataError, match="several files for 'dev'"):
        find_file(tmp_path, "dev")


def test_given_names_must_fit_whole(tmp_path: Path) -> None:
    (tmp_path / "dev_mismatched.tsv").touch()
    assert find_files(tmp_path, "dev", names=("dev_matched", "dev")) == []
    (tmp_path / "dev.tsv").touch()
    assert find_file(tmp_path, "dev", names=("dev_matched", "dev")).name == "dev.tsv"
    (tmp_path / "dev_matched.tsv").touch()
    assert find_file(tmp_path, "dev", names=("dev_matched", "dev")).name == "dev_matched.tsv"


def test_fingerprints_follow_the_content(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("x")
    second.write_text("x")
    assert fingerprint(first) == fingerprint(second)
    second.write_text("y")
    assert fingerprint(first) != fingerprint(second)
