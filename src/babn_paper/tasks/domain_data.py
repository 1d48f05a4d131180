"""Data sets of one domain, read from a folder or from the hub.

Desai & Durrett (2020, https://arxiv.org/abs/2003.07892) test on half of each development set, since
most test sets have no labels. Here the examples at even positions of a development set (the first,
the third, ...) form the development set, and those at odd positions the test set. If a folder has a
file `test`, both sets are used as they are; of TwitterURL, which has no development set, it is the
test file that is halved.

HellaSWAG (Zellers et al. 2019, https://arxiv.org/abs/1905.07830) has texts about videos
(ActivityNet) and from a site with instructions (WikiHow). If a folder has no SWAG, its HellaSWAG
file must have a column `domain`: `activitynet` is the source domain and `wikihow` the target
domain, all of which is used for testing. Neighbouring rows about one video overlap: the right
ending of one is part of the text of the next. Consecutive rows of the source with the same
`activity` are therefore kept together. These groups are shuffled with a fixed seed; the first ones
form the test set, the next ones the development set and the others the training set.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from babn.errors import DataError
from babn_paper.tasks.reading import Row, find_file, find_files, fingerprint, read_hub, read_rows
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import Part
from babn_paper.tasks.text_task import TextExample, read_texts

Split = Literal["train", "dev", "test"]

Reader = Callable[[Row], TextExample | None]
"""Makes an example of a row; `None` if the row is to be skipped."""

ENDINGS = Classes(("0", "1", "2", "3"))
"""Classes of SWAG and HellaSWAG: the indices of the endings."""

UNDECIDED = {"-", "-1"}
"""Labels of SNLI and MNLI on which annotators did not agree."""

CONTEXTS = ("sent1", "ctx_a", "context")
STARTS = ("sent2", "ctx_b")
"""Columns of the context, and of the beginning that all endings share, in SWAG and HellaSWAG."""

TEST = ("test",)
"""Name of a test set's file; `test_unlabelled` is a different set."""

HALVES = {"dev": (0, "even places"), "test": (1, "odd places")}
"""Start of each half of a development set, and its name in origins and fingerprints."""


@dataclass(frozen=True)
class PairReader:
    """Reads rows with a pair of texts and a class.

    Attributes:
        columns: Columns of the texts.
        target: The classes.
        drop_undecided: Whether to skip rows without an agreed label; otherwise they are an error.
    """

    columns: tuple[str, str]
    target: Classes
    drop_undecided: bool = False

    def __call__(self, row: Row) -> TextExample | None:
        """Reads a pair; `None` if the row is to be skipped."""
        if self.drop_undecided and str(row.values.get("label")).strip() in UNDECIDED:
            return None
        return TextExample(read_texts(row, self.columns), self.target.read(row))


def read_endings(row: Row) -> TextExample:
    """Reads a text and its endings, each with the beginning that all of them share."""
    context = row.text(row.first(CONTEXTS, "Rename the column."))
    start = next((str(row.values[name]).strip() for name in STARTS if name in row.values), "")
    endings = [f"{start} {ending}".strip() for ending in _endings(row)]
    return TextExample((context, *endings), ENDINGS.read(row))


def unfolded(rows: Sequence[Row]) -> list[Row]:
    """Makes one row per pair of rows with lists of pairs, the format of TwitterURL on the hub."""
    return [
        Row({"sentence1": one, "sentence2": other, "label": label}, f"{row.place}:{number}")
        for row in rows
        for number, (one, other, label) in enumerate(
            zip(row.get("sent1"), row.get("sent2"), row.get("labels"), strict=True), 1
        )
    ]


def _endings(row: Row) -> list[str]:
    count = len(ENDINGS.names)
    if "endings" not in row.values:
        return [row.text(f"ending{i}") for i in range(count)]
    found = row.values["endings"]
    if len(found) != count or not all(isinstance(text, str) and text.strip() for text in found):
        raise DataError(f"{row.place}: endings={found!r} are not {count} texts. Give {count}.")
    return list(found)


@dataclass(frozen=True)
class Hub:
    """Location of a data set on the hub.

    Attributes:
        path: Name of the data set.
        name: Name of its configuration.
        dev: The split that is halved.
        test: The only split that is used, as a whole, for testing.
        unfold: Converts rows of the hub to the format of files.
    """

    path: str
    name: str | None = None
    dev: str = "validation"
    test: str | None = None
    unfold: Callable[[Sequence[Row]], list[Row]] = list

    def has(self, split: Split) -> bool:
        """Whether the hub has a split."""
        return split == "test" or self.test is None

    def read(self, split: Split) -> tuple[list[Row], str, str]:
        """Returns the rows that a split is taken from, their origin and their fingerprint."""
        whole = self.test or ("train" if split == "train" else self.dev)
        rows, print_ = read_hub(self.path, self.name, whole)
        return self.unfold(rows), f"hub:{self.path} ({whole})", print_


@dataclass(frozen=True)
class Corpus:
    """A data set of one domain.

    Attributes:
        name: Name of its folder.
        hub: Its location on the hub.
        reader: Makes examples of its rows.
        dev: Possible file names of its development set.
        halves_test: Whether the file `test` is halved in place of a development set.
    """

    name: str
    hub: Hub
    reader: Reader
    dev: tuple[str, ...] = ("dev", "val", "validation")
    halves_test: bool = False

    def has(self, data: str, split: Split) -> bool:
        """Whether the hub or the data folder has a split."""
        if data == "hub":
            return self.hub.has(split)
        folder = Path(data) / self.name
        part, names = self._file_names(folder, split)
        return bool(find_files(folder, part, names))

    def read(self, data: str, split: Split) -> Part[TextExample]:
        """Reads the examples of a split from the hub or from the data folder."""
        return self._read_hub(split) if data == "hub" else self._read_folder(data, split)

    def _read_hub(self, split: Split) -> Part[TextExample]:
        if not self.hub.has(split):
            raise DataError(f"part={split!r} of {self.name!r} is not on the hub. Give a folder.")
        rows, origin, print_ = self.hub.read(split)
        halved = split != "train" and self.hub.test is None
        return self._part(rows, origin, print_, split, halved)

    def _read_folder(self, data: str, split: Split) -> Part[TextExample]:
        folder = corpus_folder(data, self.name)
        part, names = self._file_names(folder, split)
        path = find_file(folder, part, names)
        halved = split != "train" and (self.halves_test or not _has_test(folder))
        return self._part(read_rows(path), str(path), fingerprint(path), split, halved)

    def _part(
        self, rows: Sequence[Row], origin: str, print_: str, split: Split, halved: bool
    ) -> Part[TextExample]:
        examples = read_examples(rows, self.reader, origin)
        if not halved:
            return Part(split, examples, origin, print_)
        first, note = HALVES[split]
        if len(examples) < 2:
            raise DataError(f"{origin} has one example, which cannot be halved. Give more.")
        return Part(split, examples[first::2], f"{origin}, {note}", f"{print_}, {note}")

    def _file_names(self, folder: Path, split: Split) -> tuple[str, tuple[str, ...]]:
        """Returns the part that a split is read from, and the possible names of its file."""
        if split == "train":
            return "train", ()
        return ("test", TEST) if split == "test" and _has_test(folder) else ("dev", self.dev)


def corpus_folder(data: str, name: str) -> Path:
    """Returns the folder of a data set within the data folder."""
    if not Path(data).is_dir():
        raise DataError(f"data={data!r} is not a folder. Give builtin, hub, or a folder.")
    if not (folder := Path(data) / name).is_dir():
        raise DataError(f"data={data!r} has no folder {name!r}. Put the data set there.")
    return folder


def read_examples(rows: Sequence[Row], reader: Reader, origin: str) -> list[TextExample]:
    """Reads the examples of rows, leaving out those that the reader skips."""
    found = [example for row in rows if (example := reader(row)) is not None]
    if not found:
        raise DataError(f"{origin} has no example with a label. Give data with labels.")
    return found


def _has_test(folder: Path) -> bool:
    return bool(find_files(folder, "test", TEST))


SEED = 0

TEST_SHARE, DEV_SHARE = 0.2, 0.1
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
    if len(shares["test"]) < TEST_SHARE * total:
        return "test"
    return "dev" if len(shares["dev"]) < DEV_SHARE * total else "train"
