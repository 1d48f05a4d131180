"""Data sets of one domain: in a folder or on the hub, with a test set or without.

Desai & Durrett (2020) test on half of each development set, since most test sets have no labels.
Here the examples at even places of a development set (the first, the third, ...) are for choosing
settings, and those at odd places for testing. A folder that has a file `test` of its own keeps it
whole, and its development set as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from babn.errors import DataError
from babn_paper.tasks.domain_rows import Reader
from babn_paper.tasks.hub import read_hub
from babn_paper.tasks.lines import Row, find_file, find_files, fingerprint, read_rows
from babn_paper.tasks.task import Part
from babn_paper.tasks.text_task import TextExample

Split = Literal["train", "dev", "test"]

TEST = ("test",)
"""What a test set's file is called; `test_unlabelled` is another thing."""

HALVES = {"dev": (0, "even places"), "test": (1, "odd places")}
"""Where each half of a development set begins, and what its origin says."""


@dataclass(frozen=True)
class Hub:
    """Where a data set is on the hub.

    Attributes:
        path: Its name there.
        name: Which of its configurations.
        dev: The split that is halved.
        test: A split that is tested on as a whole; there is no other then.
        unfold: Makes rows of the hub those that files have.
    """

    path: str
    name: str | None = None
    dev: str = "validation"
    test: str | None = None
    unfold: Callable[[Sequence[Row]], list[Row]] = list

    def has(self, split: Split) -> bool:
        """Whether there is a split."""
        return split == "test" or self.test is None

    def read(self, split: Split) -> tuple[list[Row], str, str]:
        """The rows that a split is taken from, their origin and their fingerprint."""
        whole = self.test or ("train" if split == "train" else self.dev)
        rows, print_ = read_hub(self.path, self.name, whole)
        return self.unfold(rows), f"hub:{self.path} ({whole})", print_


@dataclass(frozen=True)
class Corpus:
    """A data set of one domain.

    Attributes:
        name: Of its folder.
        hub: Where it is on the hub.
        reader: Makes examples of its rows.
        dev: What the file of its development set may be called.
    """

    name: str
    hub: Hub
    reader: Reader
    dev: tuple[str, ...] = ("dev", "val", "validation")

    def has(self, data: str, split: Split) -> bool:
        """Whether the hub or the folder of all data has a split."""
        if data == "hub":
            return self.hub.has(split)
        folder = Path(data) / self.name
        part, names = self._where(folder, split)
        return bool(find_files(folder, part, names=names))

    def read(self, data: str, split: Split) -> Part[TextExample]:
        """The examples of a split from the hub or from the folder of all data."""
        return self._of_hub(split) if data == "hub" else self._of_folder(data, split)

    def _of_hub(self, split: Split) -> Part[TextExample]:
        if not self.hub.has(split):
            raise DataError(f"part={split!r} of {self.name!r} is not on the hub. Give a folder.")
        rows, origin, print_ = self.hub.read(split)
        halved = split != "train" and self.hub.test is None
        return self._part(rows, origin, print_, split, halved)

    def _of_folder(self, data: str, split: Split) -> Part[TextExample]:
        folder = corpus_folder(data, self.name)
        part, names = self._where(folder, split)
        path = find_file(folder, part, names=names)
        halved = split != "train" and not _is_tested(folder)
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

    def _where(self, folder: Path, split: Split) -> tuple[str, tuple[str, ...]]:
        """The part that a split's file is named after, and what the file may be called."""
        if split == "train":
            return "train", ()
        return ("test", TEST) if split == "test" and _is_tested(folder) else ("dev", self.dev)


def corpus_folder(data: str, name: str) -> Path:
    """The folder of a data set within the folder of all data."""
    if not Path(data).is_dir():
        raise DataError(f"data={data!r} is not a folder. Give builtin, hub, or a folder.")
    if not (folder := Path(data) / name).is_dir():
        raise DataError(f"data={data!r} has no folder {name!r}. Put the data set there.")
    return folder


def read_examples(rows: Sequence[Row], reader: Reader, origin: str) -> list[TextExample]:
    """The examples of rows, without those that do not count."""
    found = [example for row in rows if (example := reader(row)) is not None]
    if not found:
        raise DataError(f"{origin} has no example with a label. Give data with labels.")
    return found


def _is_tested(folder: Path) -> bool:
    return bool(find_files(folder, "test", names=TEST))
