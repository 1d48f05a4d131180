"""Reads rows of data sets from files or from the Hugging Face hub.

A data folder has one subfolder for each task, or is the folder of one task. A part of the task is
one file whose name begins with the part's: `train.tsv`, `dev_matched.tsv.gz`. Tables (`.tsv`) have
a header and no quoting; `.jsonl` files hold one JSON object per line. Both may be gzipped (`.gz`).

`read_source` reads the sources of tasks on your own data, which may also be `.csv` and `.parquet`
files or any data set on the hub.
"""

import csv
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from babn.errors import DataError, MissingExtraError, import_extra, one_line
from babn.files import parse_json
from babn_paper.data_files import check_regular, numbered_lines

HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""Parts, and their usual names on the hub."""

ENDINGS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class Row:
    """One row of a data set.

    Attributes:
        values: Values by column.
        place: File and line, for error messages.
    """

    values: dict[str, Any]
    place: str

    def text(self, column: str) -> str:
        """Returns the text of a column; raises an error if it is empty."""
        value = self.get(column)
        if not isinstance(value, str) or not value.strip():
            raise DataError(
                f"{self.place}: column {column!r} has no text. Fill it or drop the line."
            )
        return value

    def get(self, column: str) -> Any:
        """Returns the value of a column; raises an error if the column does not exist."""
        if column not in self.values:
            raise DataError(
                f"{self.place}: there is no column {column!r}, only {sorted(self.values)}. "
                "Rename the column."
            )
        return self.values[column]

    def first(self, columns: Sequence[str], remedy: str) -> str:
        """Returns the first of some columns that exists; raises an error if none does."""
        for column in columns:
            if column in self.values:
                return column
        wanted = " or ".join(map(repr, columns))
        raise DataError(
            f"{self.place}: there is no column {wanted}, only {sorted(self.values)}. {remedy}"
        )


def task_folder(data: str, task: str) -> Path:
    """Returns the folder of a task: a subfolder of `data`, or `data` itself."""
    folder = Path(data)
    if not folder.is_dir():
        raise DataError(f"data={data!r} is not a folder. Give builtin, hub, or a folder.")
    return folder / task if (folder / task).is_dir() else folder


def find_file(folder: Path, part: str, names: tuple[str, ...] = ()) -> Path:
    """Returns the only file of a part.

    Args:
        folder: The folder of the task.
        part: The split.
        names: Possible names of the file without ending, if it is not named after the part.
    """
    name = (names or (part,))[0]
    remedy = f"Put {name}.tsv or {name}.jsonl there, plain or .gz."
    return only_file(find_files(folder, part, names), folder, part, remedy)


def only_file(found: Sequence[Path], folder: Path, part: str, remedy: str) -> Path:
    """Returns the only one of the files that were found for a part."""
    if not found:
        raise DataError(f"{folder} has no file for {part!r}. {remedy}")
    if len(found) > 1:
        several = [path.name for path in found]
        raise DataError(f"{folder} has several files for {part!r}: {several}. Keep one of them.")
    return found[0]


def find_files(folder: Path, part: str, names: tuple[str, ...] = ()) -> list[Path]:
    """Returns the files named as the first possible of `names`, or whose name begins with `part`.

    A file with exactly the part's name takes precedence over those that begin with it.
    """
    for name in names or (part,):
        found = [folder / f"{name}{ending}" for ending in ENDINGS]
        found = [path for path in found if path.is_file()]
        if found:
            return found
    if names:  # dev_mismatched begins with dev and is another part
        return []
    return sorted(path for ending in ENDINGS for path in folder.glob(f"{part}[._-]*{ending}"))


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a table or of a file of JSON objects."""
    rows = list(_objects(path) if ".jsonl" in path.name else _table(path))
    if not rows:
        raise DataError(f"{path} has no rows. Give at least one.")
    return rows


def fingerprint(*paths: Path) -> str:
    """Returns a hash of the files' contents."""
    digest = hashlib.sha256()
    for path in paths:
        check_regular(path)
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
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
                f"{path}:{number}: not JSON: {error}. Correct or drop the line."
            ) from error
        if not isinstance(values, dict):
            raise DataError(f"{path}:{number}: not a JSON object. Correct or drop the line.")
        yield Row(values, f"{path}:{number}")


def check_part(data: str, part: str, parts: Iterable[str]) -> None:
    """Validates that a source of data has a part."""
    if part not in parts:
        raise DataError(f"data={data!r} has no part {part!r}. Give one of {list(parts)}.")


def read_hub(path: str, name: str | None, split: str) -> tuple[list[Row], str]:
    """Returns the rows of a split of a data set on the hub, and the split's fingerprint.

    Args:
        path: Name of the data set, such as `"nyu-mll/glue"`.
        name: Name of its configuration.
        split: Name of the split, such as `"validation"`.
    """
    place = f"hub:{path}{f'/{name}' if name else ''}/{split}"
    found = load_hub(place, path, name, split)
    rows = [Row(dict(values), f"{place}:{number}") for number, values in enumerate(found, 1)]
    if not rows:
        raise DataError(f"{place} has no rows. Give another part or a folder.")
    return rows, str(found._fingerprint)


def load_hub(place: str, path: str, name: str | None, split: str) -> Any:
    """Returns a split of a data set on the hub as the `datasets` package gives it.

    Args:
        place: Its name in error messages.
        path: Name of the data set.
        name: Name of its configuration.
        split: Name of the split.
    """
    try:
        datasets = import_module("datasets")
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise MissingExtraError(
            f"{place} needs the datasets package: pip install 'babn[data]'. Or give files."
        ) from error
    try:
        return datasets.load_dataset(path, name, split=split)
    except Exception as error:  # failed downloads raise many types, which differ between versions
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            f"{place} cannot be loaded: {reason}. Check the name and the connection, or give files."
        ) from error


HUB = "hub:"
"""Prefix of data sets on the hub: `hub:NAME`, `hub:NAME:CONFIG` or `hub:NAME:CONFIG:SPLIT`."""

TABLES, PARQUET = (".tsv", ".jsonl"), ".parquet"

TYPES = (".csv", *TABLES, PARQUET)
"""Endings of files; all but Parquet may be gzipped (`.gz`)."""

Rows = tuple[list[Row], str]
"""Rows and their fingerprint."""


def read_source(source: str, split: str) -> Rows:
    """Reads a file or a data set on the hub.

    Args:
        source: A file, or `hub:NAME` with the optional parts `:CONFIG` and `:SPLIT`.
        split: The split on the hub if the source names none.
    """
    if source.startswith(HUB):
        return read_named(source, split)
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{source} is not a file. Give a file, or a data set as {HUB}NAME.")
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending not in TYPES or path.name.endswith(f"{PARQUET}.gz"):
        raise DataError(
            f"{source} has an unknown file type. Give one of {', '.join(TYPES)}; all but "
            f"{PARQUET} may be gzipped (.gz)."
        )
    if ending in TABLES:
        return read_rows(path), fingerprint(path)
    rows = list(_parquet(path) if ending == PARQUET else _csv(path))
    if not rows:
        raise DataError(f"{path} has no rows. Give at least one.")
    return rows, fingerprint(path)


def read_named(source: str, split: str) -> Rows:
    """Reads a data set on the hub; classes are given by name if the data set names them."""
    name, _, rest = source.removeprefix(HUB).partition(":")
    config, _, own_split = rest.partition(":")
    place = f"{source}{'' if own_split else f', {split}'}"
    found = load_hub(place, name, config or None, own_split or split)
    features = getattr(found, "features", None) or {}
    names = {column: each.names for column, each in features.items() if hasattr(each, "names")}
    rows = [Row(_with_names(row, names), f"{place}:{i}") for i, row in enumerate(found, 1)]
    if not rows:
        raise DataError(f"{place} has no rows. Give another split as {HUB}NAME:CONFIG:SPLIT.")
    return rows, str(found._fingerprint)


def _with_names(values: Any, names: dict[str, list[str]]) -> dict[str, Any]:
    """Replaces indices of classes by their names; -1 marks a missing label."""
    found = dict(values)
    for column, known in names.items():
        index = found.get(column)
        if isinstance(index, int):
            found[column] = known[index] if 0 <= index < len(known) else None
    return found


def _csv(path: Path) -> Iterator[Row]:
    """Rows of a file separated by commas, or by semicolons if the header has no comma."""
    lines = (f"{line}\n" for _, line in numbered_lines(path))
    first = next(lines, "")
    separator = ";" if ";" in first and "," not in first else ","
    header = next(csv.reader([first], delimiter=separator), [])
    if repeated := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{path}:1: there are several columns {repeated[0]!r}. Rename all but one.")
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        for values in filter(None, reader):
            place = f"{path}:{reader.line_num + 1}"
            if len(values) != len(header):
                raise DataError(
                    f"{place}: {len(values)} columns where the header has {len(header)}. Put "
                    f'texts that contain "{separator}" in double quotes.'
                )
            yield Row(dict(zip(header, values, strict=True)), place)
    except csv.Error as error:
        raise DataError(
            f"{path}:{reader.line_num + 1}: not CSV: {error}. Correct or drop the line."
        ) from error


def _parquet(path: Path) -> Iterator[Row]:
    need = f"{path} must be saved as .jsonl, or needs the pyarrow package"
    parquet = import_extra("pyarrow.parquet", need, "data")
    try:
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:  # of many types, which pyarrow derives from Python's own
        raise DataError(f"{path} cannot be read: {one_line(error)}. Write it again.") from error
    return (Row(values, f"{path}, row {number}") for number, values in enumerate(rows, 1))
