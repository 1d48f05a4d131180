"""The answer to one question on a paragraph."""

from dataclasses import dataclass

from babn.files import parse_json

TEMPERATURES = tuple(2 ** (eighth / 8) for eighth in range(-16, 25))
"""Temperatures from 1/4 to 8 among which calibration chooses."""


@dataclass(frozen=True)
class SpanAnswer:
    """The answer to one question.

    Attributes:
        id: Of the question.
        golds: The right answers; none if the paragraph does not answer the question.
        best: The most probable different texts with the log-probability of each one's span, the
            best first.
        null: Log-probability of no answer.
        samples: The most probable answer of each sample, empty for no answer; none for one sample.
        gold_scores: Log-probability of the best right span, or of no answer if that is right, at
            each of `TEMPERATURES`; none if no window holds a right span.
    """

    id: str
    golds: tuple[str, ...]
    best: tuple[tuple[str, float], ...]
    null: float
    samples: tuple[str, ...] = ()
    gold_scores: tuple[float, ...] = ()

    @classmethod
    def parse(cls, line: str) -> "SpanAnswer":
        """Reads a line of a file."""
        found = parse_json(line)
        best = tuple((text, score) for text, score in found.pop("best"))
        null = found.pop("null")
        name = found.pop("id")
        return cls(name, best=best, null=null, **{key: tuple(row) for key, row in found.items()})
