"""Reading parallel texts.

A part is two files of as many lines, named by language (`train.de`, `train.en`); or one table with
a column for each language (`train.tsv`, `train.jsonl`). All may be gzipped. The development set may
be called `dev`, `valid`, `validation` or `val`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.errors import DataError
from babn_paper.data_files import numbered_lines
from babn_paper.tasks.lines import Row, find_file, find_files, fingerprint, read_rows
from babn_paper.tasks.task import Part

NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation", "val"),
    "test": ("test",),
}
"""What the files of a part may be called."""

SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""What the hub calls them."""

BEFORE_BPE = "tmp"
"""Where the usual preparation of IWSLT14 keeps its texts before it cuts words into pieces."""


@dataclass(frozen=True)
class Languages:
    """A pair of languages, by the names that files and columns have."""

    source: str
    target: str

    @classmethod
    def of(cls, text: str) -> "Languages":
        """Such as `"de-en"`."""
        source, dash, target = text.partition("-")
        if not dash or not source or not target or source == target:
            raise DataError(f"languages={text!r} is not possible. Give two, such as de-en.")
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
    """The sentences of a part, none of which is empty."""
    if part not in NAMES:
        raise DataError(f"There is no part {part!r}. Give one of {list(NAMES)}.")
    aligned, tables = _aligned(folder, part, languages), _tables(folder, part)
    if aligned and tables:
        raise DataError(f"{folder} has {aligned[0].name} and {tables[0].name}. Keep one of them.")
    if aligned:
        pairs = list(_read_aligned(aligned, languages))
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
    """The sentences of rows with a column for each language, or with a column of both."""
    return [
        SentencePair(*(_unfolded(row).text(language) for language in languages)) for row in rows
    ]


def content_fingerprint(pairs: Iterable[tuple[str, str]]) -> str:
    """Changes when a sentence does."""
    digest = hashlib.sha256("\n".join(map("\t".join, pairs)).encode())
    return digest.hexdigest()[:16]


def _unfolded(row: Row) -> Row:
    """A row as tables have it; the hub keeps both sentences in one column."""
    both: Any = row.values.get("translation")
    return Row(dict(both), row.place) if isinstance(both, Mapping) else row


def _aligned(folder: Path, part: str, languages: Languages) -> list[Path]:
    """The two files of a part, the texts before BPE first; none if there are none."""
    for place in (folder / BEFORE_BPE, folder):
        for name in NAMES[part]:
            for ending in ("", ".gz"):
                paths = [place / f"{name}.{language}{ending}" for language in languages]
                there = [path.is_file() for path in paths]
                if all(there):
                    return paths
                if any(there):
                    missing = paths[there.index(False)]
                    raise DataError(f"{paths[there.index(True)]} is there and {missing} is not.")
    return []


def _tables(folder: Path, part: str) -> list[Path]:
    return find_files(folder, part, names=_exact(part))


def _exact(part: str) -> tuple[str, ...]:
    """A training set may have a longer name; `test_2` would be another set."""
    return () if part == "train" else NAMES[part]


def _read_aligned(paths: list[Path], languages: Languages) -> Iterator[SentencePair]:
    sides = [list(numbered_lines(path)) for path in paths]
    counts = [len(side) for side in sides]
    for path, count in zip(paths, counts, strict=True):
        if not count:
            raise DataError(f"{path} is empty. Give at least one line.")
    if counts[0] != counts[1]:
        shorter = paths[counts.index(min(counts))]
        raise DataError(
            f"{shorter}:{min(counts)} is the last line, but the other file has {max(counts)} "
            f"lines ({paths[0].name}: {counts[0]}, {paths[1].name}: {counts[1]}). Give files whose "
            "lines belong together."
        )
    for (number, source), (_, target) in zip(*sides, strict=True):
        for path, text in zip(paths, (source, target), strict=True):
            if not text.strip():
                raise DataError(f"{path}:{number} is empty. Fill it or drop it from both files.")
        yield SentencePair(source, target)
