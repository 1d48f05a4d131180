"""Reading lines with their numbers, and writing so that an interruption leaves old files whole."""

import codecs
import gzip
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from babn.data_files import open_data
from babn.errors import BabnError, DataError, FormatError, StorageError, one_line

CHECKSUMS = "checksums.json"
"""Beside a folder's files, their checksums."""

PARTIAL = ".partial"
"""How names of files end that are being written."""


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text, gzipped or not, with their numbers from 1 on."""
    try:
        with open_data(path) as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)  # some editors put it there
                yield number, line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}. Save it as UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Get it again.") from error


def parse_json(text: str | bytes) -> Any:
    """What a text of JSON says; anything that is wrong with it is a `ValueError`."""
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if "\\u" in text:  # half a sign, as in "\ud800", is no text that anything else can read
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, none of whose keys comes twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} comes twice")
    return found


def read_npz(path: Path, remedy: str) -> dict[str, Any]:
    """The arrays of an `.npz` file.

    Args:
        path: The file.
        remedy: What to do about one that cannot be read, for the error.
    """
    try:
        # numpy would leave a file open that it cannot read.
        with open_data(path) as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except DataError:
        raise
    except Exception as error:  # damage shows in numpy and zipfile in many ways
        raise DataError(f"{path} cannot be read: {one_line(error)}. {remedy}") from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file and moves over it, once what was written has reached the disk."""
    # Several processes and threads may write the same file, such as one of the cache.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    partial = path.with_name(f".{path.name}.{writer}{PARTIAL}")
    try:
        write(partial)
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except BabnError:
        raise
    except OSError as error:
        raise StorageError.of(path, error) from error
    finally:
        with suppress(OSError):  # on a read-only disk; the error above says more
            partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Writes a text so that an interruption leaves the old one."""
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's names, are on the disk."""
    try:
        number = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder, where the system does not open folders
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)


def note_files(folder: Path) -> None:
    """Writes down the checksum of each file of a folder, beside them."""
    found = {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.is_file()}
    replace_text(folder / CHECKSUMS, json.dumps(found, indent=1) + "\n")


def check_files(folder: Path) -> None:
    """Refuses a folder whose files are not those that were written down, if any were."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    try:
        noted = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path} is damaged: {error}. Delete it to load unchecked.") from error
    for name, digest in noted.items():
        if not (folder / name).is_file():
            raise FormatError(f"{folder / name} does not exist. Check the folder.")
        if _digest(folder / name) != digest:
            raise FormatError(
                f"{folder / name} is damaged: it is not the file that was written. Delete {path} "
                "if you have changed it on purpose, else get the folder again."
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
