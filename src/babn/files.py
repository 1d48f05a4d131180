"""Writing files so that an interruption leaves the old ones whole."""

from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file and moves over it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
