"""Tables of translation: scores, what they cost, and how uncertainty goes with quality."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from babn.evaluation.tables import Table
from babn_paper.experiments.naming import mode_name, rule_name
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import (
    NONE,
    NOT_RUN,
    average,
    by_label,
    mean_and_deviation,
    tried,
    with_papers_numbers,
)

PARTS = ("test", "dev")
"""The first of these that a run has is the one that its scores are of."""

OUT = "out-test"

SCORES = ("BLEU", "sacreBLEU", "chrF")

UNSURE = ("NLL", "entropy", "mutual information", "spread")

EXPLANATION = (
    "Mean ± standard deviation over seeds; scores are percentages. "
    "BLEU is that of multi-bleu.perl over tokenised text. chrF ~ a measure of uncertainty is "
    "Spearman's correlation over the sentences; the nearer to -1, the better the measure tells bad "
    "translations. MC dropout judges the translations of the mean. Words are pieces of words."
)


@dataclass(frozen=True)
class _Line:
    group: list[Record]
    label: str
    mode: str

    @property
    def part(self) -> str:
        found: dict[str, Any] = next((r.results["measures"] for r in self.group if r.results), {})
        return next((part for part in PARTS if part in found), PARTS[0])

    def cell(self, part: str, measure: str, percent: bool = True) -> str:
        """Mean and deviation of a measure over seeds."""
        found = [record.measure(part, self.mode, measure) for record in self.group]
        return mean_and_deviation([v for v in found if v is not None], percent)

    def median(self, name: str, digits: int) -> str:
        """The median over seeds of what a run noted besides its measures."""
        found = [value for record in self.group if (value := record.results.get(name))]
        return f"{statistics.median(found):.{digits}f}" if found else NONE


def translation_table(records: Sequence[Record], caption: str = "") -> Table:
    """One row for each cell and way to ask, beside the paper's numbers if there are any."""
    lines = list(_lines(records))
    across = any(OUT in record.results.get("measures", {}) for record in records)
    head = ["attention", "asked", "BLEU, paper", *SCORES]
    head += [f"{score}, other domain" for score in SCORES[::2]] if across else []
    head += [f"chrF ~ {name}" for name in UNSURE]
    head += ["parameters, paper", "parameters", "s/step, paper", "s/step", "words/s"]
    rows = [_row(line, across) for line in lines]
    notes = sorted({n for r in records for n in r.results.get("notes", {}).values()})
    text = " ".join([EXPLANATION, *(f"sacreBLEU: {note}." for note in notes)])
    found = Table([*head, "sentences", "seeds"], rows, caption or text, _best(lines))
    return with_papers_numbers(found)


def _lines(records: Sequence[Record]) -> Iterator[_Line]:
    for label, group in by_label(records).items():
        found = dict.fromkeys(mode for record in group for mode in record.measures)
        yield from (_Line(group, label, mode) for mode in found or ["mean"])


def _row(line: _Line, across: bool) -> list[str]:
    experiment = line.group[0].experiment
    done = sum(bool(record.results) for record in line.group)
    printed = experiment["paper"] if line.mode == "mean" else {}
    rule = experiment["rule"]
    names = [f"{rule_name(rule)}{tried(line.label)}", mode_name(rule, line.mode)]
    if not done:
        return [*names, printed.get("BLEU", NONE), *[NOT_RUN] * (13 + 2 * across), "0"]
    size = float(line.median("parameters", 0))
    return [
        *names,
        printed.get("BLEU", NONE),
        *(line.cell(line.part, score) for score in SCORES),
        *((line.cell(OUT, score) for score in SCORES[::2]) if across else ()),
        *(line.cell(line.part, f"chrF~{name} Spearman", percent=False) for name in UNSURE),
        printed.get("parameters", NONE),
        f"{size / 1e6:.1f}M",
        printed.get("s/step", NONE),
        line.median("seconds_per_step", 3),
        line.median("words_per_second", 0),
        f"{line.group[0].results['measures'][line.part][line.mode]['sentences']:.0f}",
        str(done),
    ]


def _best(lines: Sequence[_Line]) -> frozenset[tuple[int, int]]:
    """Places of the best of each score."""
    places = set()
    for column, score in enumerate(SCORES, 3):
        known = [[r.measure(line.part, line.mode, score) for r in line.group] for line in lines]
        found = {
            row: mean
            for row, values in enumerate(known)
            if (mean := average([value for value in values if value is not None])) is not None
        }
        if len(found) > 1:
            best = max(found.values())
            places |= {(row, column) for row, value in found.items() if value == best}
    return frozenset(places)
