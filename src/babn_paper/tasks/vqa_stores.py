"""Stores of features of image regions: `.npz` files in a folder, one HDF5 file or one LMDB.

An `.npz` file holds `x`, the features of 10 to 100 regions, region by feature or transposed as in
the bottom-up files of MCAN, and optionally `bbox` with the regions' corners. An HDF5 file holds one
data set for each image, region by feature. In an LMDB, a key is
the number of an image in decimal or the name of its file, and a value has the bytes of an `.npz` or
`.npy` file. Pickles, as in the files of ViLBERT and MMF, are rejected, because loading a pickle can
execute arbitrary code.
"""

import os
import re
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from babn.errors import DataError, import_extra, one_line
from babn_paper.data_files import Stamp, check_regular, open_data, stamp

Arrays = tuple[np.ndarray, np.ndarray | None]
"""Features of an image and the corners of its regions, as stored."""

DAMAGES = (OSError, KeyError, ValueError, RuntimeError)
"""Exceptions that reading damaged features may raise."""

END = 1024
"""Number of bytes at the end of an `.npz` that hold its directory, with checksums."""

_COCO = re.compile(r"(?:coco_\w+_)?(\d{12})", re.IGNORECASE)
_ENDING = re.compile(r"(\.jpg|\.npz|\.npy)+$")


@dataclass(frozen=True)
class Store(ABC):
    """Features of many images.

    Attributes:
        path: File or folder.
    """

    path: Path

    parallel = True
    """Whether several threads may read at the same time."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Returns the keys of the images."""

    @abstractmethod
    def arrays(self, key: str) -> Arrays:
        """Returns features and corners of an image."""

    @abstractmethod
    def check(self, keys: Iterable[str]) -> None:
        """Raises an error if features are damaged, as far as a quick check can tell."""

    @abstractmethod
    def digest(self, key: str) -> bytes:
        """Returns bytes that change with the features of an image, without reading all of them."""


class NpzFolder(Store):
    """One `.npz` for each image."""

    def names(self) -> list[str]:
        """Returns the names of the files."""
        return [path.name for path in self.path.glob("*.npz")]

    def arrays(self, key: str) -> Arrays:
        """Returns the arrays `x` and `bbox`."""
        return read_arrays(self.path / key)

    def check(self, keys: Iterable[str]) -> None:
        """Raises an error if a file is not a zip archive."""
        for key in keys:
            check_regular(self.path / key)
            if not zipfile.is_zipfile(self.path / key):
                raise DataError(f"{self.path / key} is damaged. Extract the features again.")

    def digest(self, key: str) -> bytes:
        """Returns size and end of the file, where an `.npz` has the checksums of its arrays."""
        with (self.path / key).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - END))
            return size.to_bytes(8) + file.read()


class Hdf5File(Store):
    """One data set for each image, region by feature."""

    parallel = False

    def names(self) -> list[str]:
        """Returns the names of the data sets."""
        return [*self._file.keys()]

    def arrays(self, key: str) -> Arrays:
        """Returns the data set, without corners."""
        return np.asarray(self._file[key], dtype=np.float32), None

    def check(self, keys: Iterable[str]) -> None:
        """Raises an error if a data set is not two-dimensional."""
        for key in keys:
            if getattr(self._file[key], "ndim", 0) != 2:
                raise DataError(
                    f"{self.path}: {key!r} is no table of regions by features. Extract them again."
                )

    def digest(self, key: str) -> bytes:
        """Returns the shape, and the features of the first and the last region."""
        found = self._file[key]
        ends = [np.asarray(found[row]).tobytes() for row in (0, -1) if len(found)]
        return b"".join([repr(found.shape).encode(), *ends])

    @cached_property
    def _file(self) -> Any:
        h5py = import_extra("h5py", f"Reading {self.path} needs h5py", "vqa")
        check_regular(self.path)
        try:
            return h5py.File(self.path, "r")
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}. Download it again.") from error


def read_arrays(file: Path | BytesIO) -> Arrays:
    """Reads features and corners from an `.npz`, or features from an `.npy`.

    Raises:
        ValueError: The content is damaged or in another format.
    """
    try:
        if isinstance(file, BytesIO):
            return _loaded(file)
        # numpy would leave a file open that it cannot read.
        with open_data(file) as opened:
            return _loaded(opened)
    except Exception as error:  # numpy, zipfile, zlib and tokenize raise many types
        raise ValueError(one_line(error)) from error


def _loaded(file: BufferedIOBase) -> Arrays:
    found = np.load(file, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return np.asarray(found, dtype=np.float32), None
    with found:
        boxes = np.asarray(found["bbox"], dtype=np.float32) if "bbox" in found else None
        return np.asarray(found["x"], dtype=np.float32), boxes


def image_key(key: str) -> str:
    """Returns the image that a key refers to; for images of COCO the number without zeros.

    `COCO_train2014_000000000009.jpg.npz`, `000000000009` and `9` all refer to `9`.
    """
    name = _ENDING.sub("", key.rsplit("/", 1)[-1])
    coco = _COCO.fullmatch(name)
    return str(int(coco[1])) if coco else name


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
