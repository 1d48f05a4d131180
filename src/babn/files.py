"""Reading lines with their numbers, and writing so that an interruption leaves old files whole."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from babn.errors import DataError


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text, gzipped or not, with their numbers from 1 on."""
    open_file: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}. Save it as UTF-8.") from error
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}. Get it again.") from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file and moves over it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Writes a text so that an interruption leaves the old one."""
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))
