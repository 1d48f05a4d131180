"""Predicted answers to questions on paragraphs.

A folder holds `answers.json`, which describes the format, and `answers.jsonl.gz` with one question
per line.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from babn.errors import FormatError
from babn.files import replace_file
from babn_paper.tasks.span_metrics import TEMPERATURES, SpanPrediction, measure
from babn_paper.tasks.task import Predictions, description_of, write_description

FORMAT = 1
KIND, LINES = "spans", "answers.jsonl.gz"


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
        fields = {
            "questions": len(self.questions),
            "unanswerable": self.unanswerable,
            "temperatures": TEMPERATURES,
        }
        write_description(folder, FORMAT, KIND, fields)

    def _lines(self) -> Iterator[str]:
        for each in self.questions:
            yield json.dumps(asdict(each), ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, folder: Path) -> "SpanPredictions":
        """Reads what `save` wrote."""
        with description_of(folder, FORMAT, KIND) as found:
            lines = gzip.decompress((folder / LINES).read_bytes()).decode().split("\n")[:-1]
            if len(lines) != found["questions"]:
                raise FormatError(
                    f"{folder / LINES} has {len(lines)} of {found['questions']} answers. Test the "
                    "model again."
                )
            return cls(tuple(map(SpanPrediction.parse, lines)), found["unanswerable"])
