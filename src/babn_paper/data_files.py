"""Reads data files: regular files only, and gzipped ones up to a size limit."""

import codecs
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from babn.errors import DataError, one_line

LARGEST_RATIO, ALWAYS_ALLOWED = 100, 2**28
"""A `.gz` may expand to this multiple of its size, and to this many bytes in any case.

Text compresses by a factor of 3 to 20; only a decompression bomb comes near the limit.
"""

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and modification time of each file."""


@contextmanager
def open_data(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a data file for reading bytes; decompresses `.gz` and `.tgz`."""
    check_regular(path)
    with path.open("rb") as file:
        if path.suffix not in (".gz", ".tgz"):
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield io.BufferedReader(_Limited(unpacked, path))


def read_data(path: Path) -> bytes:
    """The content of a data file, decompressed if it is a `.gz`."""
    with open_data(path) as file:
        return file.read()


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers, from 1, and lines of a text file, gzipped or not."""
    try:
        with open_data(path) as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)  # some editors put it there
                yield number, line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}. Save it as UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Download it again.") from error


def read_npz(path: Path, remedy: str) -> dict[str, Any]:
    """The arrays of an `.npz` file.

    Args:
        path: The file.
        remedy: What to do about an unreadable file, for the error message.
    """
    try:
        # numpy leaves files open that it cannot read.
        with open_data(path) as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds
        raise DataError(f"{path} cannot be read: {one_line(error)}. {remedy}") from error


def check_regular(path: Path) -> None:
    """Validates that a path is a regular file; reading a named pipe would block."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file. Give a file with data.")


def stamp(path: Path) -> Stamp:
    """Name, size and modification time, by which a changed file or folder is recognised."""
    if path.is_dir():
        with os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    else:
        found = [(path.name, path.stat())]
    return tuple(sorted((name, info.st_size, info.st_mtime_ns) for name, info in found))


class _Limited(io.RawIOBase):
    """The decompressed bytes of a gzipped file, up to a multiple of its size."""

    def __init__(self, file: gzip.GzipFile, path: Path) -> None:
        self.file, self.path = file, path
        self.most = max(ALWAYS_ALLOWED, LARGEST_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer)
        if self.file.tell() > self.most:
            raise DataError(
                f"{self.path} expands to more than {self.most} bytes, over {LARGEST_RATIO} times "
                "its size, unlike any text. Download it again, or unpack it if it is correct."
            )
        return count
