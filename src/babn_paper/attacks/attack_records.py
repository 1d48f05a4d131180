"""One line for each attacked example, written as soon as it is done."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard

from babn.errors import FormatError
from babn.files import parse_json, read_regular

Outcome = Literal["success", "failed", "skipped", "error"]
"""The model was fooled, was not fooled, was wrong to begin with, or could not be attacked."""


@dataclass(frozen=True, kw_only=True)
class AttackRecord:
    """What came of one example.

    Attributes:
        place: Its line in the part, from 0.
        outcome: How it ended, from the attacker's side.
        label: The right class; empty if it is not known.
        before: The model's answer to the original texts.
        after: Its answer to the changed ones.
        original: The texts by column.
        perturbed: The changed texts; for a failed attack the best that was found.
        probs_before: Probabilities of the classes for the original texts.
        probs_after: The same for the changed ones, as the attacker saw them.
        holds: Whether the changed texts fool the model once more, asked afresh; `None` unless the
            attack succeeded.
        queries: How often the attacker asked the model.
        words: Words of the original texts.
        changed: Words of them that were changed.
        seconds: How long it took.
        error: Why the example could not be attacked.
    """

    place: int
    outcome: Outcome
    label: str = ""
    before: str = ""
    after: str = ""
    original: dict[str, str]
    perturbed: dict[str, str] = field(default_factory=dict)
    probs_before: list[float] = field(default_factory=list)
    probs_after: list[float] = field(default_factory=list)
    holds: bool | None = None
    queries: int = 0
    words: int = 0
    changed: int = 0
    seconds: float = 0.0
    error: str = ""


def append_record(path: Path, record: AttackRecord) -> None:
    """Adds a line, which is in the file when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def read_records(path: Path) -> list[AttackRecord]:
    """The records of a file, in order; none if there is no file."""
    lines = read_regular(path).splitlines() if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        values = _parsed(line)
        if not _is_record(values):
            raise FormatError(f"{path}:{number} is damaged. Attack again with --overwrite.")
        records.append(AttackRecord(**values))
    return records


def drop_broken_end(path: Path) -> None:
    """Takes away a last line that was being written when the process died."""
    if path.exists():
        content = read_regular(path)
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            path.write_bytes(whole)


def of_places(records: Sequence[AttackRecord], places: Sequence[int]) -> list[AttackRecord]:
    """The records of some examples, in the order of the examples."""
    by_place = {record.place: record for record in records}
    return [by_place[place] for place in places if place in by_place]


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError:  # neither JSON nor UTF-8
        return None


def _is_record(values: Any) -> TypeGuard[dict[str, Any]]:
    known = AttackRecord.__dataclass_fields__.keys()
    return isinstance(values, dict) and {"place", "outcome", "original"} <= values.keys() <= known
