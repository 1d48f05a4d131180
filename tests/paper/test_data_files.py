"""Opening data files: what would hang or fill the memory is refused in one line."""

import gzip
import os
from pathlib import Path

import pytest

from babn.errors import DataError
from babn.files import parse_json
from babn_paper import data_files
from babn_paper.attacks.local_resources import read_table
from babn_paper.attacks.local_resources import read_vectors as read_synonyms
from babn_paper.data_files import numbered_lines, open_data, read_data, read_npz, stamp
from babn_paper.tasks.reading import fingerprint, read_rows
from babn_paper.tasks.squad_files import read_official
from babn_paper.tasks.vqa_features import FeatureFiles, read_arrays


def test_a_gzipped_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    (tmp_path / "a").write_bytes(content)
    assert read_data(tmp_path / "a.gz") == read_data(tmp_path / "a") == content
    with open_data(tmp_path / "a.gz") as file:
        assert file.seek(1000) == 1000
        assert file.read(3) == content[1000:1003]
        assert file.seek(0) == 0
        assert file.read(2) == content[:2]


def bomb(path: Path, unpacked: int = 2**24) -> Path:
    path.write_bytes(gzip.compress(b"a" * unpacked))
    assert path.stat().st_size < unpacked / 500
    return path


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("train.tsv.gz", read_rows),
        ("train.jsonl.gz", read_rows),
        ("train.en.gz", lambda path: list(numbered_lines(path))),
        ("train-v1.1.json.gz", lambda path: list(read_official(path))),
        ("neighbours.json.gz", read_table),
    ],
)
def test_a_gzip_bomb_is_refused_before_it_is_unpacked(
    name: str, read: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(read)
    monkeypatch.setattr(data_files, "ALWAYS_ALLOWED", 2**16)
    path = bomb(tmp_path / name)
    most = max(2**16, 100 * path.stat().st_size)
    with pytest.raises(DataError, match=f"more than {most} bytes, over 100") as e:
        read(path)
    assert "\n" not in str(e.value)


def test_small_files_may_expand_as_they_like(tmp_path: Path) -> None:
    assert len(read_data(bomb(tmp_path / "a.gz"))) == 2**24
    assert data_files.ALWAYS_ALLOWED >= 2**28


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "features" / "train.npz"
    path.parent.mkdir()
    os.mkfifo(path)
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "read",
    [
        read_rows,
        fingerprint,
        read_data,
        lambda path: list(numbered_lines(path)),
        lambda path: read_npz(path, ""),
        lambda path: FeatureFiles(path.parent, ["train"]).check(),
        read_arrays,
        read_table,
        read_synonyms,
    ],
)
def test_a_named_pipe_is_refused_and_not_waited_for(fifo: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match=r"train\.npz is not a regular file"):
        read(fifo)


def test_stamps_change_with_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = stamp(tmp_path), stamp(tmp_path / "a")
    assert before == (stamp(tmp_path), stamp(tmp_path / "a"))
    os.utime(tmp_path / "a", ns=(0, 1))
    assert stamp(tmp_path) != before[0]
    assert stamp(tmp_path / "a") != before[1]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]'])
def test_keys_that_come_twice_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the key 'a' occurs twice"):
        parse_json(text)
