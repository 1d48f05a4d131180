"""Reading the lines of data files, with the place of each for error messages.

A folder of data holds one folder for each task, or is the folder of one task. A part of the task
is one file whose name begins with the part's: `train.tsv`, `dev_matched.tsv.gz`. Tables (`.tsv`)
have a header and no quoting; `.jsonl` files hold one object a line. Both may be gzipped (`.gz`).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.errors import DataError
from babn.files import parse_json
from babn_paper.data_files import check_regular, numbered_lines

ENDINGS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class Row:
    """One line of a file.

    Attributes:
        values: What stands in each column.
        place: File and line, for errors.
    """

    values: dict[str, Any]
    place: str

    def text(self, column: str) -> str:
        """The text of a column, which must not be empty."""
        value = self.get(column)
        if not isinstance(value, str) or not value.strip():
            raise DataError(
                f"{self.place}: column {column!r} has no text. Fill it or drop the line."
            )
        return value

    def get(self, column: str) -> Any:
        """The value of a column, which must exist."""
        if column not in self.values:
            raise DataError(
                f"{self.place}: there is no column {column!r}, only {sorted(self.values)}. "
                "Rename the column."
            )
        return self.values[column]


def task_folder(data: str, task: str) -> Path:
    """The folder of a task: inside the folder of all data, or that folder itself."""
    folder = Path(data)
    if not folder.is_dir():
        raise DataError(f"data={data!r} is not a folder. Give builtin, hub, or a folder.")
    return folder / task if (folder / task).is_dir() else folder


def find_file(
    folder: Path, part: str, endings: tuple[str, ...] = ENDINGS, names: tuple[str, ...] = ()
) -> Path:
    """The only file of a part.

    Args:
        folder: The folder of the task.
        part: The split.
        endings: How the names of files may end.
        names: What the file may be called, if not like the part.
    """
    found = find_files(folder, part, endings, names)
    if len(found) == 1:
        return found[0]
    if found:
        several = [path.name for path in found]
        raise DataError(f"{folder} has several files for {part!r}: {several}. Keep one of them.")
    name = (names or (part,))[0]
    raise DataError(
        f"{folder} has no file for {part!r}. Put {name}.tsv or {name}.jsonl there, plain or .gz."
    )


def find_files(
    folder: Path, part: str, endings: tuple[str, ...] = ENDINGS, names: tuple[str, ...] = ()
) -> list[Path]:
    """The files of exactly a part's name, or of the first of `names`, else those that begin so."""
    for name in names or (part,):
        found = [folder / f"{name}{ending}" for ending in endings]
        found = [path for path in found if path.is_file()]
        if found:
            return found
    if names:  # dev_mismatched begins like dev, and is another part
        return []
    return sorted(path for ending in endings for path in folder.glob(f"{part}[._-]*{ending}"))


def read_rows(path: Path) -> list[Row]:
    """All lines of a table or of a file of JSON objects."""
    rows = list(_objects(path) if ".jsonl" in path.name else _table(path))
    if not rows:
        raise DataError(f"{path} has no rows. Give at least one.")
    return rows


def fingerprint(*paths: Path) -> str:
    """Changes when the content of one of the files does."""
    digest = hashlib.sha256()
    for path in paths:
        check_regular(path)
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()[:16]


def _table(path: Path) -> Iterator[Row]:
    lines = numbered_lines(path)
    header = next(lines, (0, ""))[1].split("\t")
    if repeated := [name for name in header if header.count(name) > 1]:
        raise DataError(
            f"{path}:1: there are {header.count(repeated[0])} columns {repeated[0]!r}. Rename or "
            "drop all but one."
        )
    for number, line in lines:
        values = line.split("\t")
        if len(values) != len(header):
            raise DataError(
                f"{path}:{number}: {len(values)} columns where the header has {len(header)}. "
                "Columns are separated by tabs, and nothing is quoted."
            )
        yield Row(dict(zip(header, values, strict=True)), f"{path}:{number}")


def _objects(path: Path) -> Iterator[Row]:
    for number, line in numbered_lines(path):
        try:
            values = parse_json(line)
        except ValueError as error:
            raise DataError(
                f"{path}:{number}: not JSON: {error}. Mend or drop the line."
            ) from error
        if not isinstance(values, dict):
            raise DataError(f"{path}:{number}: not a JSON object. Mend or drop the line.")
        yield Row(values, f"{path}:{number}")
