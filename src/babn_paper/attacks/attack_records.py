"""Records of attacked examples with their summary statistics, and the folder that holds them."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, TypedDict

from babn.errors import ConfigError, FormatError
from babn.files import parse_json, read_bytes, read_object
from babn_paper.attacks.plan import Plan
from babn_paper.experiments.experiment import current_names
from babn_paper.experiments.run_folder import RunFolder, write_json

Outcome = Literal["success", "failed", "skipped", "error"]
"""The model was fooled, was not fooled, was wrong from the start, or could not be attacked."""


@dataclass(frozen=True, kw_only=True)
class AttackRecord:
    """The result of one example.

    Attributes:
        place: Its row in the part of the data, counted from 0.
        outcome: The outcome, from the attacker's point of view.
        label: The true class; empty if it is unknown.
        before: The predicted class of the original texts.
        after: The predicted class of the perturbed texts.
        original: The original texts by column.
        perturbed: The perturbed texts; of a failed attack, the best ones that were found.
        probs_before: Class probabilities of the original texts.
        probs_after: Class probabilities of the perturbed texts, as the attacker received them.
        holds: Whether the perturbed texts fool the model in a new query, with new noise; `None`
            unless the attack succeeded.
        queries: Number of the attacker's queries.
        words: Number of words in the original texts.
        changed: Number of changed words.
        seconds: Duration of the attack.
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


def select_records(records: Sequence[AttackRecord], places: Sequence[int]) -> list[AttackRecord]:
    """The records of some examples, in the order of the examples."""
    by_place = {record.place: record for record in records}
    return [by_place[place] for place in places if place in by_place]


class Summary(TypedDict):
    """Summary statistics of an attack; shares are fractions of 1.

    Attributes:
        examples: Examples that were attacked or skipped.
        success: Examples on which the model was fooled.
        failed: Examples on which it was not fooled.
        skipped: Examples on which it was wrong from the start.
        errors: Further examples, which could not be attacked.
        failed_share: Failed among failed and successful attacks: the paper's measure.
        accuracy: Accuracy before the attack.
        accuracy_under_attack: Accuracy after the attack.
        changed_share: Mean share of changed words in successful attacks.
        queries: Mean number of queries in failed and successful attacks.
        holds: Share of successful attacks that fool the model in a new query, with new noise.
        seconds: Duration of all attacks.
    """

    examples: int
    success: int
    failed: int
    skipped: int
    errors: int
    failed_share: float
    accuracy: float
    accuracy_under_attack: float
    changed_share: float
    queries: float
    holds: float
    seconds: float


def summarise(records: Sequence[AttackRecord]) -> Summary:
    """Summary statistics of records; NaN where a denominator is zero."""
    counts = Counter(record.outcome for record in records)
    attacked = [record for record in records if record.outcome in ("success", "failed")]
    fooled = [record for record in records if record.outcome == "success"]
    examples = len(attacked) + counts["skipped"]
    return Summary(
        examples=examples,
        success=len(fooled),
        failed=counts["failed"],
        skipped=counts["skipped"],
        errors=counts["error"],
        failed_share=_share(counts["failed"], len(attacked)),
        accuracy=_share(len(attacked), examples),
        accuracy_under_attack=_share(counts["failed"], examples),
        changed_share=_mean([record.changed / max(record.words, 1) for record in fooled]),
        queries=_mean([record.queries for record in attacked]),
        holds=_mean([float(bool(record.holds)) for record in fooled]),
        seconds=sum(record.seconds for record in records),
    )


def failed_twice(summary: Summary) -> float:
    """Share of attacks that fail, or whose success does not hold in a new query."""
    attacks = summary["success"] + summary["failed"]
    held = summary["success"] * summary["holds"] if summary["success"] else 0.0
    return 1 - held / attacks if attacks else math.nan


def shown_numbers(summary: Summary) -> dict[str, str]:
    """The statistics as tables show them, without undefined ones."""
    shown = {
        "failed attacks": _shown(summary["failed_share"], ".1%"),
        "accuracy before": _shown(summary["accuracy"], ".1%"),
        "accuracy under attack": _shown(summary["accuracy_under_attack"], ".1%"),
        "words changed": _shown(summary["changed_share"], ".1%"),
        "queries": _shown(summary["queries"], ".1f"),
        "success holds": _shown(summary["holds"], ".1%"),
        "failed, two queries": _shown(failed_twice(summary), ".1%"),
    }
    counts = {name: str(summary[name]) for name in ("success", "failed", "skipped", "errors")}
    return {name: value for name, value in shown.items() if value} | counts


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _shown(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


def align_words(before: str, after: str) -> Iterator[tuple[list[str], list[str], bool]]:
    """Aligned runs of words of two texts, and whether they differ."""
    old, new = before.split(), after.split()
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield old[i:j], new[k:m], tag != "equal"


def words_changed(before: str, after: str) -> int:
    """Number of changed words; a word that is split or inserted counts once."""
    return sum(max(len(old), 1) for old, _, differ in align_words(before, after) if differ)


def count_words(text: str) -> int:
    """Number of words in a text."""
    return len(text.split())


FORMAT = 1


class AttackFolder:
    """Records, settings and page of one attack.

    Attributes:
        path: The folder.
        records: The records, one line for each example.
        description: Settings, resources, versions and summary.
        page: The HTML page.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / "attacks.jsonl"
        self.description = path / "attack.json"
        self.page = path / "attacks.html"

    @classmethod
    def of(cls, run: Path, plan: Plan) -> "AttackFolder":
        """The folder of an attack on the model of a run."""
        return cls(run / "attacks" / plan.name)

    def locked(self) -> AbstractContextManager[None]:
        """Holds the lock of this attack; other attacks on the same model are not affected."""
        return RunFolder(self.path).locked()

    def clear(self) -> None:
        """Deletes the files of the attack."""
        for each in (self.records, self.description, self.page):
            each.unlink(missing_ok=True)

    def begin(self, identity: dict[str, Any], description: dict[str, Any]) -> None:
        """Writes the description, or checks that an existing attack is the same one.

        Args:
            identity: Everything that determines the records.
            description: Further information for readers.
        """
        self._drop_broken_end()
        if self.description.exists() and self.read():
            self._check_same(self.describe()["identity"], identity)
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(
            self.description,
            {"format": FORMAT, "state": "unfinished", "identity": identity, **description},
        )

    def finish(self, summary: Summary) -> None:
        """Adds the summary to the description."""
        write_json(self.description, {**self.describe(), "state": "done", "summary": summary})

    def describe(self) -> dict[str, Any]:
        """Reads the description."""
        found = current_names(read_object(self.description, "Attack again with --overwrite."))
        if found.get("format") != FORMAT:
            raise FormatError(
                f"{self.description} has format {found.get('format')}; this babn reads {FORMAT}."
            )
        return found

    def add(self, record: AttackRecord) -> None:
        """Appends the record of an example."""
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")

    def read(self) -> list[AttackRecord]:
        """Reads all records in order."""
        lines = read_bytes(self.records).splitlines() if self.records.exists() else []
        return [self._record(number, line) for number, line in enumerate(lines, 1)]

    def _record(self, number: int, line: bytes) -> AttackRecord:
        try:
            return AttackRecord(**parse_json(line))
        except (ValueError, TypeError) as error:  # not UTF-8, not JSON, or other fields
            raise FormatError(
                f"{self.records}:{number} is damaged. Attack again with --overwrite."
            ) from error

    def _drop_broken_end(self) -> None:
        """Removes an incomplete last line, which a killed process leaves."""
        if self.records.exists():
            content = read_bytes(self.records)
            complete = content[: content.rfind(b"\n") + 1]
            if complete != content:
                self.records.write_bytes(complete)

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        plain = json.loads(json.dumps(now))
        changed = [name for name in plain if before.get(name) != plain[name]]
        if changed:
            listed = ", ".join(f"{n}={before.get(n)!r} (now {plain[n]!r})" for n in changed)
            raise ConfigError(
                f"{self.path} was started with {listed}. Continue with the same, or start again "
                "with --overwrite."
            )


def attack_folders(run: Path) -> list[AttackFolder]:
    """The finished attacks on the model of a run."""
    found = [AttackFolder(path.parent) for path in sorted(run.glob("attacks/*/attack.json"))]
    return [each for each in found if each.describe()["state"] == "done"]
