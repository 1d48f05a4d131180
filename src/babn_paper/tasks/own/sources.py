"""Reads rows of CSV, TSV, JSON lines and Parquet files, and of data sets on the hub."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babn.errors import DataError, import_extra, one_line
from babn_paper.data_files import numbered_lines
from babn_paper.tasks.reading import Row, fingerprint, load_hub, read_rows

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
