"""Features of image regions in one LMDB, whose values are the bytes of `.npz` or `.npy` files.

A key is the number of an image in decimal, or the name of its file. Pickles, as in the files of
ViLBERT and MMF, are rejected, because loading a pickle can execute arbitrary code.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from babn.errors import DataError, import_extra
from babn_paper.data_files import Stamp, check_regular, stamp
from babn_paper.tasks.vqa_stores import END, Arrays, Store, read_arrays

DATA = "data.mdb"
"""Name of the data file of an LMDB that is a folder."""

ENDINGS = (".lmdb", ".mdb")
"""Endings of an LMDB that is a single file."""

_NPY, _NPZ, _NPZ_END, _PICKLE = b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06", b"\x80"


def is_lmdb(path: Path) -> bool:
    """Whether a file or folder is an LMDB."""
    return (path / DATA).is_file() if path.is_dir() else path.suffix in ENDINGS


class Lmdb(Store):
    """One value for each image. Holds no handle, so that it can be sent to other processes."""

    def names(self) -> list[str]:
        """Returns all keys, including those that are not of images."""
        with self._reading() as found:
            return [_text(key) for key in found.cursor().iternext(keys=True, values=False)]

    def arrays(self, key: str) -> Arrays:
        """Returns the arrays `x` and `bbox` of an `.npz`, or the features of an `.npy`."""
        with self._reading() as found:
            return read_arrays(BytesIO(found.get(_bytes(key), b"")))

    def check(self, keys: Iterable[str]) -> None:
        """Raises an error if a value is in another format, judged by its first and last bytes."""
        with self._reading() as found:
            for key in keys:
                if problem := _problem(found.get(_bytes(key), b"")):
                    raise DataError(f"{self.path}: the value of {key!r} is {problem}")

    def digest(self, key: str) -> bytes:
        """Returns size, beginning and end of the value; an `.npz` ends with its checksums."""
        with self._reading() as found:
            value = found.get(_bytes(key), b"")
            return len(value).to_bytes(8) + bytes(value[:END]) + bytes(value[-END:])

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        environment = _environment(self.path.resolve())
        import lmdb

        try:
            with environment.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise DataError(f"{self.path} is damaged: {error}. Download it again.") from error


def _problem(value: memoryview | bytes) -> str | None:
    """Returns what is wrong with a value, and the remedy; `None` if nothing is."""
    head = bytes(value[: len(_NPY)])
    if head.startswith(_NPZ):
        whole = _NPZ_END in bytes(value[-END:])
        return None if whole else "truncated. Download the file again."
    if head == _NPY:
        return None
    if head.startswith(_PICKLE):
        return "a pickle, which could execute code. Convert the file as docs/vqa.md shows."
    return "neither an .npz nor an .npy. Convert the file as docs/vqa.md shows."


_opened: dict[Path, tuple[Stamp, Any]] = {}
_opening = threading.Lock()


def _environment(path: Path) -> Any:
    """Returns the open LMDB, reopening it if the file has changed.

    A process may open a file only once. It is opened read-only and without locks, so that any
    number of processes can read it, including forks.
    """
    file = path / DATA if path.is_dir() else path
    check_regular(file)
    with _opening:
        now = stamp(file) if file.exists() else ()
        before, found = _opened.pop(path, (None, None))
        if found is not None and before != now:
            found.close()
        if before != now:
            found = _open(path)
        _opened[path] = now, found
        return found


def _open(path: Path) -> Any:
    lmdb = import_extra("lmdb", f"Reading {path} needs lmdb", "vqa")
    settings = {"create": False, "readonly": True, "lock": False, "readahead": False}
    try:
        found = lmdb.open(str(path), subdir=path.is_dir(), **settings)
    except lmdb.Error as error:
        raise DataError(f"{path} cannot be read: {error}. Download it again.") from error
    _check_length(path, (found.info()["last_pgno"] + 1) * found.stat()["psize"])
    return found


def _check_length(path: Path, expected: int) -> None:
    """Raises an error if a file is truncated: reading past its end would kill the process."""
    size = (path / DATA if path.is_dir() else path).stat().st_size
    if size < expected:
        raise DataError(f"{path} has {size} bytes instead of {expected}. Download it again.")


def _text(key: memoryview) -> str:
    return bytes(key).decode("utf-8", "surrogateescape")


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
