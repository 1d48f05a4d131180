"""Reads parallel texts.

A part is two files with the same number of lines, named by language (`train.de`, `train.en`); or
one table with a column for each language (`train.tsv`, `train.jsonl`). All may be gzipped. The
development set may be named `dev`, `valid`, `validation` or `val`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.errors import DataError
from babn_paper.data_files import numbered_lines
from babn_paper.tasks.reading import Row, find_file, find_files, fingerprint, read_rows
from babn_paper.tasks.task import Part

NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation", "val"),
    "test": ("test",),
}
"""Possible file names of each part."""

BEFORE_BPE = "tmp"
"""Subfolder in which the usual preparation of IWSLT14 keeps the texts before BPE."""


@dataclass(frozen=True)
class Languages:
    """A pair of languages, by their names in file names and columns."""

    source: str
    target: str

    @classmethod
    def of(cls, text: str) -> "Languages":
        """Parses a pair of languages such as `"de-en"`."""
        source, dash, target = text.partition("-")
        if not dash or not source or not target or source == target:
            raise DataError(f"languages={text!r} is invalid. Give two, such as de-en.")
        return cls(source, target)

    def __iter__(self) -> Iterator[str]:
        return iter((self.source, self.target))


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence and its translation."""

    source: str
    target: str


def has_part(folder: Path, part: str, languages: Languages) -> bool:
    """Whether a folder has a part."""
    known = part in NAMES
    return known and bool(_aligned(folder, part, languages) or _tables(folder, part))


def read_part(folder: Path, part: str, languages: Languages) -> Part[SentencePair]:
    """Reads the sentences of a part, none of which is empty."""
    if part not in NAMES:
        raise DataError(f"There is no part {part!r}. Give one of {list(NAMES)}.")
    aligned, tables = _aligned(folder, part, languages), _tables(folder, part)
    if aligned and tables:
        raise DataError(f"{folder} has {aligned[0].name} and {tables[0].name}. Keep one of them.")
    if aligned:
        pairs = list(read_aligned(aligned))
        return Part(part, pairs, str(aligned[0]), fingerprint(*aligned))
    if not tables:
        source, target = languages
        name = NAMES[part][0]
        raise DataError(
            f"{folder} has no file for {part!r}. Put {name}.{source} and {name}.{target} there, or "
            f"{name}.tsv with columns {source} and {target}; plain or .gz."
        )
    path = find_file(folder, part, names=_exact(part))
    return Part(part, pairs_of(read_rows(path), languages), str(path), fingerprint(path))


def pairs_of(rows: Iterable[Row], languages: Languages) -> list[SentencePair]:
    """Reads the sentences of rows with a column for each language, or with one column of both."""
    return [
        SentencePair(*(_unfolded(row).text(language) for language in languages)) for row in rows
    ]


def content_fingerprint(pairs: Iterable[tuple[str, str]]) -> str:
    """Returns a hash of sentence pairs."""
    digest = hashlib.sha256("\n".join(map("\t".join, pairs)).encode())
    return digest.hexdigest()[:16]


def _unfolded(row: Row) -> Row:
    """Converts a row to the format of tables; the hub has both sentences in one column."""
    both: Any = row.values.get("translation")
    return Row(dict(both), row.place) if isinstance(both, Mapping) else row


def _aligned(folder: Path, part: str, languages: Languages) -> list[Path]:
    """Returns the two files of a part, preferably those before BPE; none if there are none."""
    for place in (folder / BEFORE_BPE, folder):
        for name in NAMES[part]:
            for ending in ("", ".gz"):
                paths = [place / f"{name}.{language}{ending}" for language in languages]
                there = [path.is_file() for path in paths]
                if all(there):
                    return paths
                if any(there):
                    missing = paths[there.index(False)]
                    raise DataError(
                        f"{paths[there.index(True)]} exists and {missing} does not. Add it."
                    )
    return []


def _tables(folder: Path, part: str) -> list[Path]:
    return find_files(folder, part, names=_exact(part))


def _exact(part: str) -> tuple[str, ...]:
    """Returns the exact names of a part's file; a training set may have a longer name."""
    return () if part == "train" else NAMES[part]


def read_aligned(paths: list[Path]) -> Iterator[SentencePair]:
    """Yields the sentence pairs of two files with the same number of lines."""
    sides = [list(numbered_lines(path)) for path in paths]
    counts = [len(side) for side in sides]
    for path, count in zip(paths, counts, strict=True):
        if not count:
            raise DataError(f"{path} is empty. Give at least one line.")
    if counts[0] != counts[1]:
        shorter = paths[counts.index(min(counts))]
        raise DataError(
            f"{shorter}:{min(counts)} is the last line, but the other file has {max(counts)} "
            f"lines ({paths[0].name}: {counts[0]}, {paths[1].name}: {counts[1]}). Give aligned "
            "files."
        )
    for (number, source), (_, target) in zip(*sides, strict=True):
        for path, text in zip(paths, (source, target), strict=True):
            if not text.strip():
                raise DataError(f"{path}:{number} is empty. Fill it or drop it from both files.")
        yield SentencePair(source, target)
