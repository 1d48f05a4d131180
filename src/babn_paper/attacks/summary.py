"""The numbers of an attack."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

from babn_paper.attacks.attack_records import AttackRecord


class Summary(TypedDict):
    """What an attack came to; shares are fractions of one.

    Attributes:
        examples: Examples that could be attacked or skipped.
        success: Those on which the model was fooled.
        failed: Those on which it was not.
        skipped: Those on which it was wrong already.
        errors: Further ones that could not be attacked.
        failed_share: Failed among failed and successful attacks: the paper's measure.
        accuracy: Share of right answers before the attack.
        accuracy_under_attack: Share of right answers that are left.
        changed_share: Mean share of words changed, among successful attacks.
        queries: Mean queries for an example, among failed and successful attacks.
        holds: Share of successful attacks that fool the model once more, asked afresh.
        seconds: Of all attacks together.
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
    """Every number that follows from the records; NaN where there is nothing to divide by."""
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


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
