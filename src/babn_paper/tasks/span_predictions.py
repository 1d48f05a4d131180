"""Predicted answers to questions on paragraphs.

A folder holds `answers.json`, which describes the format, and `answers.jsonl.gz` with one question
per line.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from babn.errors import FormatError
from babn.files import parse_json, replace_file, replace_text
from babn_paper.tasks.span_metrics import TEMPERATURES, SpanPrediction, measure
from babn_paper.tasks.task import Predictions

FORMAT = 1
DESCRIPTION, LINES = "answers.json", "answers.jsonl.gz"


@dataclass(frozen=True)
class SpanPredictions(Predictions):
    """The predicted answers to all questions of a part.

    Attributes:
        questions: One prediction for each question.
        unanswerable: Whether questions may have no answer, as in SQuAD 2.0.
    """

    questions: tuple[SpanPrediction, ...]
    unanswerable: bool

    def measure(self) -> dict[str, float]:
        """Computes the official scores, calibration, and detection of wrong answers."""
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
        replace_text(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")

    def _lines(self) -> Iterator[str]:
        for each in self.questions:
            yield json.dumps(asdict(each), ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, folder: Path) -> "SpanPredictions":
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
            return cls(tuple(map(SpanPrediction.parse, lines)), found["unanswerable"])
        except FormatError:
            raise
        except FileNotFoundError as error:
            raise FormatError(f"{error.filename} does not exist. Check the folder.") from error
        except (KeyError, TypeError, ValueError, EOFError, OSError, zlib.error) as error:
            raise FormatError(f"{folder} is damaged: {error!r}. Test the model again.") from error
