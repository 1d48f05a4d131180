"""Reads regular files, and writes files atomically."""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from babn.errors import BabnError, FormatError, StorageError, one_line

CHECKSUMS = "checksums.json"
"""File with the checksums of the other files in a folder."""

PARTIAL = ".partial"
"""Suffix of files that are being written."""


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise FormatError(
            f"{path} is not a regular file but a folder, pipe, socket or device. Give a file."
        )
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FormatError(f"{path} does not exist. Check the folder.") from error
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {one_line(error)}. Check the folder.") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; raises `ValueError` for any defect."""
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if "\\u" in text:  # lone surrogates, as in "\ud800", cannot be encoded
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return found


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: The file.
        remedy: What to do about a damaged file, for the error message.
    """
    content = read_bytes(path)
    try:
        values = parse_json(content)
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {one_line(error)}. {remedy}") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path} does not hold a JSON object. {remedy}")
    return values


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a temporary file beside `path`, flushes it to disk and renames it to `path`."""
    # Several processes and threads may write the same file, for example in a cache.
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
        with suppress(OSError):  # on a read-only disk this would hide the first error
            partial.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Creates a folder and its parents, if they do not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The folder {path} cannot be created: {one_line(error)}. Give another one."
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def flush(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    try:
        number = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder, where the system does not open folders
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)


def note_files(folder: Path) -> None:
    """Writes the checksums of the files in a folder to `checksums.json`."""
    found = {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.is_file()}
    replace_text(folder / CHECKSUMS, json.dumps(found, indent=1) + "\n")


def check_files(folder: Path) -> None:
    """Validates the files in a folder against `checksums.json`, if it exists."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    for name, digest in read_object(path, "Delete it to load unchecked.").items():
        if not (folder / name).exists():
            raise FormatError(f"{folder / name} does not exist. Check the folder.")
        if _digest(folder / name) != digest:
            raise FormatError(
                f"{folder / name} is damaged: its checksum differs. Delete {path} if you have "
                "changed the file on purpose, otherwise get the folder again."
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
