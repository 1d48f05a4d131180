"""Answers to questions on paragraphs, kept so that every number can be computed without the model.

A folder holds `answers.json`, which says what the format is, and `answers.jsonl.gz` with one
question a line.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from babn.errors import FormatError
from babn.files import parse_json, replace_file, replace_text
from babn_paper.tasks.span_answer import TEMPERATURES, SpanAnswer
from babn_paper.tasks.span_measures import measure
from babn_paper.tasks.task import Answers

FORMAT = 1
DESCRIPTION, LINES = "answers.json", "answers.jsonl.gz"


@dataclass(frozen=True)
class SpanAnswers(Answers):
    """The answers to all questions of a part.

    Attributes:
        questions: One answer for each.
        unanswerable: Whether no answer is one, as in SQuAD 2.0.
    """

    questions: tuple[SpanAnswer, ...]
    unanswerable: bool

    def measure(self) -> dict[str, float]:
        """Scores by the official rules, and how well the model knows when it is right."""
        return measure(self.questions, self.unanswerable)

    def save(self, folder: Path) -> None:
        """Writes `answers.json` and `answers.jsonl.gz`."""
        folder.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress("".join(self._lines()).encode(), mtime=0)
        replace_file(folder / LINES, lambda path: path.write_bytes(packed))
        description = {
            "format": FORMAT,
            "kind": "spans",
            "questions": len(self.questions),
            "unanswerable": self.unanswerable,
            "temperatures": TEMPERATURES,
        }
        text = json.dumps(description, indent=2) + "\n"
        replace_text(folder / DESCRIPTION, text)

    def _lines(self) -> Iterator[str]:
        for answer in self.questions:
            yield json.dumps(asdict(answer), ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, folder: Path) -> "SpanAnswers":
        """Reads what `save` wrote."""
        try:
            found = parse_json((folder / DESCRIPTION).read_text())
            if (found["format"], found["kind"]) != (FORMAT, "spans"):
                raise FormatError(
                    f"{folder / DESCRIPTION} has format {found['format']!r} of "
                    f"{found['kind']!r}; this version of babn reads format {FORMAT} of 'spans'. "
                    "Test the model again."
                )
            lines = gzip.decompress((folder / LINES).read_bytes()).decode().split("\n")[:-1]
            if len(lines) != found["questions"]:
                raise FormatError(
                    f"{folder / LINES} has {len(lines)} of {found['questions']} answers. Test the "
                    "model again."
                )
            return cls(tuple(map(SpanAnswer.parse, lines)), found["unanswerable"])
        except FileNotFoundError as error:
            raise FormatError(f"{error.filename} does not exist. Check the folder.") from error
        except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{folder} is damaged: {error!r}. Test the model again.") from error
