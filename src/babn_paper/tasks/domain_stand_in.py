"""Two domains in one data set, where the data sets of a task are not at hand.

HellaSWAG has texts about videos (ActivityNet) and from a site with instructions (WikiHow). Where a
folder has no SWAG, its file of HellaSWAG must have a column `domain`: `activitynet` is the source
and `wikihow` the target, of which all is tested on.

Neighbouring rows about one video quote each other: the right ending of one stands in the text of
the next. Rows of the source that follow each other with the same `activity` therefore stay
together: such groups are shuffled, always in the same way, and the first ones become the test set,
the next ones the development set, the others the training set.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from babn.errors import DataError
from babn_paper.tasks.domain_data import Split, corpus_folder, read_examples
from babn_paper.tasks.domain_rows import Reader
from babn_paper.tasks.lines import Row, find_file, find_files, fingerprint, read_rows
from babn_paper.tasks.task import Part
from babn_paper.tasks.text_task import TextExample

SEED = 0

TEST, DEV = 0.2, 0.1
"""Shares of the source; each grows to the end of its last group."""


@dataclass(frozen=True)
class Divided:
    """A data set with rows of two domains.

    Attributes:
        name: Of its folder.
        title: In tables.
        source: What the column `domain` says of the rows to train on.
        target: What it says of the others.
        reader: Makes examples of rows.
        files: What the file may be called.
    """

    name: str
    title: str
    source: str
    target: str
    reader: Reader
    files: tuple[str, ...] = ("val", "dev", "validation")

    def has(self, data: str) -> bool:
        """Whether the folder of all data has the file."""
        return bool(find_files(Path(data) / self.name, "dev", names=self.files))

    def is_origin(self, origin: str) -> bool:
        """Whether examples with this origin are of the source."""
        return f", {self.source}, " in origin

    def read_source(self, data: str, split: Split) -> Part[TextExample]:
        """A share of the source."""
        rows, path = self._rows(data, self.source)
        return self._part(divide(rows)[split], path, self.source, split)

    def read_target(self, data: str) -> Part[TextExample]:
        """All of the target."""
        rows, path = self._rows(data, self.target)
        return self._part(rows, path, self.target, "test")

    def _rows(self, data: str, domain: str) -> tuple[list[Row], Path]:
        path = find_file(corpus_folder(data, self.name), "dev", names=self.files)
        rows = read_rows(path)
        if "domain" not in rows[0].values:
            raise DataError(
                f"{path} has no column 'domain' that tells {self.source} from {self.target}. Add "
                f"it, or put the folder of the data set to train on into {data}."
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
        return Part(
            split,
            read_examples(rows, self.reader, origin),
            origin,
            f"{fingerprint(path)}, {note}",
        )


def divide(rows: Sequence[Row]) -> dict[Split, list[Row]]:
    """Shares of rows, those that belong together in the same one."""
    groups = [list(group) for _, group in groupby(rows, lambda row: row.get("activity"))]
    random.Random(SEED).shuffle(groups)
    shares: dict[Split, list[Row]] = {"test": [], "dev": [], "train": []}
    for group in groups:
        shares[_open_share(shares, len(rows))].extend(group)
    return shares


def _open_share(shares: dict[Split, list[Row]], total: int) -> Split:
    """The first share that is not full."""
    if len(shares["test"]) < TEST * total:
        return "test"
    return "dev" if len(shares["dev"]) < DEV * total else "train"
