"""Tensors come back as they were written, and any change to their file is noticed."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from babn import tensor_files
from babn.errors import FormatError, StorageError
from babn.tensor_files import read_tensors, write_tensors

TENSORS = {
    "weights": torch.arange(12.0).reshape(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "step": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "truth": torch.tensor([True, False]),
}
ABOUT = {"step": "7", "name": "ß"}
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "file", TENSORS, ABOUT)
    return tmp_path / "file"


def is_whole(path: Path) -> bool:
    """Whether a file gives what was written; what it refuses must be named."""
    try:
        tensors, _ = read_tensors(path, "Get it again.")
    except FormatError as error:
        assert str(path) in str(error) and "Get it again." in str(error)
        return False
    assert same(tensors)
    return True


def test_reading_while_another_thread_writes(path: Path) -> None:
    """Every reading finds one of the two files whole."""
    files = [({"x": torch.full((1000,), float(i))}, {"about": str(i)}) for i in range(2)]
    write_tensors(path, *files[0])
    stop = threading.Event()

    def write() -> None:
        for file in itertools.cycle(files):
            if stop.is_set():
                return
            write_tensors(path, *file)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            read = [read_tensors(path) for _ in range(300)]
        finally:
            stop.set()
        writing.result()
    assert all(tensors["x"].eq(float(about["about"])).all() for tensors, about in read)
    assert {about["about"] for _, about in read} == {"0", "1"}


def same(tensors: dict[str, Tensor]) -> bool:
    assert tensors.keys() == TENSORS.keys()
    return all(
        torch.equal(x, TENSORS[n]) and x.dtype == TENSORS[n].dtype for n, x in tensors.items()
    )


def test_tensors_come_back(path: Path) -> None:
    tensors, about = read_tensors(path)
    assert same(tensors) and about == ABOUT


def test_every_length_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert not is_whole(path), length
    path.write_bytes(whole + b"\0")
    assert not is_whole(path)


def test_every_changed_byte_of_the_data_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in range(header, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert not is_whole(path), place


@same_folder
@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_any_changed_byte_is_noticed_or_changes_nothing(
    path: Path, place: int, change: int
) -> None:
    write_tensors(path, TENSORS, ABOUT)
    changed = bytearray(path.read_bytes())
    changed[place % len(changed)] ^= change
    path.write_bytes(changed)
    is_whole(path)


@same_folder
@given(content=st.binary(max_size=200))
def test_anything_else_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert not is_whole(path)


def test_files_of_others_are_taken_as_they_are(path: Path) -> None:
    save_file(TENSORS, path)
    assert is_whole(path)


@pytest.mark.parametrize("place", ["missing", "folder"])
def test_what_is_no_file_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError, match=place):
        read_tensors(tmp_path / place)


def test_an_interruption_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(tensors: Any, partial: Path, about: Any) -> None:
        partial.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(tensor_files, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(path, {"other": torch.zeros(3)})
    assert is_whole(path) and [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_full_disk_is_told_with_the_remedy(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "file"

    def to_full(tensors: Any, partial: Path, about: Any) -> None:
        with full.open("wb") as file:
            file.write(b"0" * 100_000)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tensor_files, "save_file", to_full)
        with pytest.raises(StorageError, match=r"file cannot be written.*No space.*Free disk"):
            write_tensors(path, TENSORS)
    assert not list(tmp_path.iterdir())
