"""Files of any kind are read or refused in one line, and never waited for."""

import errno
import gzip
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from babn import files
from babn.errors import BabnError, FormatError, StorageError
from babn.files import check_files, make_folder, note_files, read_object, replace_text
from babn.tensor_files import read_tensors
from babn_paper.data_files import numbered_lines, read_npz

READERS: dict[str, Callable[[Path], Any]] = {
    "lines": lambda path: list(numbered_lines(path)),
    "object": lambda path: read_object(path, "Get it again."),
    "arrays": lambda path: read_npz(path, "Get it again."),
    "tensors": read_tensors,
}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(os.name == "nt", reason="no such files")
@pytest.mark.parametrize("make", [pipe, unix_socket, device, Path.mkdir])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_no_regular_file_is_refused_at_once(
    reader: Callable[[Path], Any],
    make: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make(Path("file"))
    with pytest.raises(BabnError, match="file is not a regular file") as found:
        reader(Path("file"))
    assert "\n" not in str(found.value)


def test_lines_of_a_gzipped_text(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress("ä\nb".encode()))
    assert list(numbered_lines(tmp_path / "text.gz")) == [(1, "ä"), (2, "b")]


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{", '"\\ud800"', "", "9" * 5000])
def test_anything_but_a_json_object_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(text)
    with pytest.raises(FormatError, match=r"values\.json (is not JSON|does not hold).*Mend it\."):
        read_object(tmp_path / "values.json", "Mend it.")


def test_checksums_nested_too_deeply_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note_files(tmp_path)
    check_files(tmp_path)
    (tmp_path / files.CHECKSUMS).write_text("[" * 100_000)
    with pytest.raises(FormatError, match=r"nested too deeply.*Delete it to load unchecked"):
        check_files(tmp_path)


def read_only(*_: Any, **__: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_read_only_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a file can be neither written nor taken away."""
    for name in ("write_text", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, read_only)
    with pytest.raises(StorageError, match=r"text cannot be written: .*Read-only file system"):
        replace_text(tmp_path / "text", "words")
    with pytest.raises(StorageError, match=r"new cannot be created: .*Read-only file system"):
        make_folder(tmp_path / "new")
