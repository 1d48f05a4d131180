"""Translation of your own sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from babn.errors import DataError
from babn_paper.tasks.own.files import FILES, OwnFiles
from babn_paper.tasks.own.sources import Rows
from babn_paper.tasks.reading import Row, fingerprint
from babn_paper.tasks.task import Part
from babn_paper.tasks.translation.pairs import SentencePair, read_aligned
from babn_paper.tasks.translation.task import OPTIONS, TranslationTask


@dataclass(frozen=True)
class OwnTranslation(OwnFiles, TranslationTask):
    """Translation, of files that options name or of a folder as in `translation.pairs`.

    A source of data is a table with a column for each language, or two aligned files as
    `SOURCE,TARGET`.

    Attributes:
        source: Column of the sentences.
        target: Column of their translations.
    """

    source: str = "source"
    target: str = "target"

    further_options: ClassVar[tuple[str, ...]] = (*sorted(OPTIONS), "source", "target")

    def check_ready(self) -> None:
        """Raises an error if sacreBLEU is not installed."""
        TranslationTask.check_ready(self)

    def has(self, data: str, part: str) -> bool:
        """Whether the data has a part."""
        if _is_own(data):
            return part in OwnFiles.tested_parts(self, data)
        return TranslationTask.has(self, data, part)

    def tested_parts(self, data: str) -> list[str]:
        """Returns the parts to evaluate on."""
        base: type[Any] = OwnFiles if _is_own(data) else TranslationTask
        found: list[str] = base.tested_parts(self, data)
        return found

    def _read(self, data: str, part: str) -> Part[SentencePair]:
        if not _is_own(data):
            return super()._read(data, part)
        if not self.train:
            OwnFiles.check_ready(self)
        rows, origin, print_ = self.rows(data, part)
        pairs = [SentencePair(row.text(self.source), row.text(self.target)) for row in rows]
        return Part(part, pairs, origin, print_)

    def column_options(self) -> tuple[str, ...]:
        """Returns the options that name columns."""
        return ("source", "target")

    def read_source(self, source: str, split: str) -> Rows:
        """Reads a table, or two aligned files."""
        first, comma, second = source.partition(",")
        if not comma:
            return super().read_source(source, split)
        paths = [Path(first.strip()), Path(second.strip())]
        for path in paths:
            if not path.is_file():
                raise DataError(f"{path} is not a file. Give two aligned files as SOURCE,TARGET.")
        pairs = enumerate(read_aligned(paths), 1)
        rows = [
            Row({self.source: each.source, self.target: each.target}, f"{paths[0]}:{number}")
            for number, each in pairs
        ]
        return rows, fingerprint(*paths)


def _is_own(data: str) -> bool:
    """Whether options or a file give the data, not a folder or a corpus by name."""
    return data == FILES or not (data in ("builtin", "hub") or Path(data).is_dir())


TASKS = {"translation": OwnTranslation("translation", "translation", ("translation",))}
"""The task by name."""
