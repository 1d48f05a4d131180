"""Two domains from one data set, for a task whose source data set is missing.

HellaSWAG (Zellers et al. 2019, https://arxiv.org/abs/1905.07830) has texts about videos
(ActivityNet) and from a site with instructions (WikiHow). If a folder has no SWAG, its HellaSWAG
file must have a column `domain`: `activitynet` is the source domain and `wikihow` the target
domain, all of which is used for testing.

Neighbouring rows about one video overlap: the right ending of one is part of the text of the next.
Consecutive rows of the source with the same `activity` are therefore kept together. These groups
are shuffled with a fixed seed; the first ones form the test set, the next ones the development set
and the others the training set.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from babn.errors import DataError
from babn_paper.tasks.domain_data import Reader, Split, corpus_folder, read_examples
from babn_paper.tasks.reading import Row, find_file, find_files, fingerprint, read_rows
from babn_paper.tasks.task import Part
from babn_paper.tasks.text_task import TextExample

SEED = 0

TEST, DEV = 0.2, 0.1
"""Shares of the source; each is rounded up to whole groups."""


@dataclass(frozen=True)
class SplitCorpus:
    """A data set with rows of two domains.

    Attributes:
        name: Name of its folder.
        title: Name in tables.
        source: Value of the column `domain` in rows of the source domain.
        target: Its value in rows of the target domain.
        reader: Makes examples of rows.
        files: Possible file names.
    """

    name: str
    title: str
    source: str
    target: str
    reader: Reader
    files: tuple[str, ...] = ("val", "dev", "validation")

    def has(self, data: str) -> bool:
        """Whether the data folder has the file."""
        return bool(find_files(Path(data) / self.name, "dev", self.files))

    def is_origin(self, origin: str) -> bool:
        """Whether examples with this origin are of the source domain."""
        return f", {self.source}, " in origin

    def read_source(self, data: str, split: Split) -> Part[TextExample]:
        """Reads a split of the source domain."""
        rows, path = self._rows(data, self.source)
        return self._part(split_rows(rows)[split], path, self.source, split)

    def read_target(self, data: str) -> Part[TextExample]:
        """Reads the whole target domain."""
        rows, path = self._rows(data, self.target)
        return self._part(rows, path, self.target, "test")

    def _rows(self, data: str, domain: str) -> tuple[list[Row], Path]:
        path = find_file(corpus_folder(data, self.name), "dev", self.files)
        rows = read_rows(path)
        if "domain" not in rows[0].values:
            raise DataError(
                f"{path} has no column 'domain' with {self.source} or {self.target}. Add it, or "
                f"put the folder of the data set to train on into {data}."
            )
        for row in rows:
            if row.get("domain") not in (self.source, self.target):
                raise DataError(
                    f"{row.place}: domain={row.get('domain')!r} is not known. Give "
                    f"{self.source!r} or {self.target!r}."
                )
        return [row for row in rows if row.get("domain") == domain], path

    def _part(
        self, rows: Sequence[Row], path: Path, domain: str, split: Split
    ) -> Part[TextExample]:
        note = f"{domain}, {split}"
        origin = f"{path}, {note}"
        examples = read_examples(rows, self.reader, origin)
        return Part(split, examples, origin, f"{fingerprint(path)}, {note}")


def split_rows(rows: Sequence[Row]) -> dict[Split, list[Row]]:
    """Splits rows at random; consecutive rows with the same activity stay together."""
    groups = [list(group) for _, group in groupby(rows, lambda row: row.get("activity"))]
    random.Random(SEED).shuffle(groups)
    shares: dict[Split, list[Row]] = {"test": [], "dev": [], "train": []}
    for group in groups:
        shares[_open_share(shares, len(rows))].extend(group)
    return shares


def _open_share(shares: dict[Split, list[Row]], total: int) -> Split:
    """Returns the first split that is not full."""
    if len(shares["test"]) < TEST * total:
        return "test"
    return "dev" if len(shares["dev"]) < DEV * total else "train"
