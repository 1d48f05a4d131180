"""The table of translation: scores, uncertainty and costs."""

from collections.abc import Sequence
from typing import Any

from babn.evaluation.tables import Table
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import (
    MODE,
    NONE,
    NOT_RUN,
    Line,
    best_places,
    lines_by_mode,
    without_empty_paper_columns,
)

PARTS = ("test", "dev")
"""Scores are of the first of these parts that a run has."""

OUT = "out-test"
"""The test part of the other domain."""

SCORES = ("BLEU", "sacreBLEU", "chrF")

UNCERTAINTIES = ("NLL", "entropy", "mutual information", "spread")

EXPLANATION = (
    "Cells are mean ± standard deviation over seeds, and scores are percentages. BLEU is computed "
    "as by multi-bleu.perl on tokenised text. chrF ~ a measure of uncertainty is Spearman's "
    "correlation between the two over sentences; the closer to -1, the better the measure detects "
    "bad translations. MC dropout evaluates the translations of the mean. words/s counts subwords."
)


def translation_table(records: Sequence[Record], caption: str = "") -> Table:
    """A row for each cell and mode, beside the paper's values."""
    lines = list(lines_by_mode(records))
    across = any(OUT in record.results.get("measures", {}) for record in records)
    head = ["attention", MODE, "BLEU, paper", *SCORES]
    head += [f"{score}, other domain" for score in SCORES[::2]] if across else []
    head += [f"chrF ~ {name}" for name in UNCERTAINTIES]
    head += ["parameters, paper", "parameters", "s/step, paper", "s/step", "words/s"]
    rows = [_row(line, across) for line in lines]
    notes = sorted({n for r in records for n in r.results.get("notes", {}).values()})
    text = " ".join([EXPLANATION, *(f"sacreBLEU: {note}." for note in notes)])
    best = {
        (row, column)
        for column, score in enumerate(SCORES, 3)
        for row in best_places({i: line.values(_part(line), score) for i, line in enumerate(lines)})
    }
    table = Table([*head, "sentences", "seeds"], rows, caption or text, frozenset(best))
    return without_empty_paper_columns(table)


def _part(line: Line) -> str:
    """The part that the scores of a line are of."""
    measures: dict[str, Any] = next((r.results["measures"] for r in line.group if r.results), {})
    return next((part for part in PARTS if part in measures), PARTS[0])


def _row(line: Line, across: bool) -> list[str]:
    printed = line.experiment["paper"] if line.mode == "mean" else {}
    names, part = [line.attention, line.mode_name], _part(line)
    if not line.done:
        scores = [NOT_RUN] * (len(SCORES) + 2 * across + len(UNCERTAINTIES))
        costs = [printed.get("parameters", NONE), NOT_RUN, printed.get("s/step", NONE)]
        return [*names, printed.get("BLEU", NONE), *scores, *costs, *[NOT_RUN] * 3, "0"]
    return [
        *names,
        printed.get("BLEU", NONE),
        *(line.cell(part, score) for score in SCORES),
        *((line.cell(OUT, score) for score in SCORES[::2]) if across else ()),
        *(line.cell(part, f"chrF~{name} Spearman", percent=False) for name in UNCERTAINTIES),
        printed.get("parameters", NONE),
        f"{float(line.median('parameters', 0)) / 1e6:.1f}M",
        printed.get("s/step", NONE),
        line.median("seconds_per_step", 3),
        line.median("words_per_second", 0),
        f"{line.group[0].results['measures'][part][line.mode]['sentences']:.0f}",
        str(line.done),
    ]
