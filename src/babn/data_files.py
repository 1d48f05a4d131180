"""Opening data files: regular files only, and gzipped ones up to a limit."""

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from babn.errors import DataError

LARGEST_RATIO, ALWAYS_ALLOWED = 100, 2**28
"""A `.gz` may expand to this multiple of its size, and to this many bytes in any case.

Text compresses 3 to 20 times; only a file made to fill the memory comes near the limit.
"""

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of the last change of each file."""


@contextmanager
def open_data(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a data file for reading bytes, those of a `.gz` or `.tgz` unpacked."""
    check_regular(path)
    with path.open("rb") as file:
        if path.suffix not in (".gz", ".tgz"):
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield io.BufferedReader(_Limited(unpacked, path))


def read_data(path: Path) -> bytes:
    """The content of a data file, that of a `.gz` unpacked."""
    with open_data(path) as file:
        return file.read()


def check_regular(path: Path) -> None:
    """Refuses what is not a file, such as a named pipe, whose reader would wait forever."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file. Give a file with data.")


def stamp(path: Path) -> Stamp:
    """Tells a changed file, or a folder with a changed file, from what it was."""
    if path.is_dir():
        with os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    else:
        found = [(path.name, path.stat())]
    return tuple(sorted((name, info.st_size, info.st_mtime_ns) for name, info in found))


class _Limited(io.RawIOBase):
    """Bytes of a gzipped file, which must not be far more than the file itself."""

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
                "its size, as no text does. Get it again, or unpack it if it is right."
            )
        return count
