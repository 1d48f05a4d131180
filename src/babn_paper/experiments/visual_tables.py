"""Further tables of visual question answering: by question kind and type, and by noise level."""

import re
from collections.abc import Callable, Sequence

from babn.evaluation.tables import Table
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import MODE, NONE, Line, lines_by_mode, mean_and_deviation
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.vqa import NOISE, VqaTask, noise_of
from babn_paper.tasks.vqa_metrics import is_of_type, type_accuracy, type_count, type_rows
from babn_paper.tasks.vqa_predictions import CONSTANT

KIND = re.compile(r"accuracy \((.+)\)")

Cell = Callable[[Line], str]
"""The cell of a line in some column."""

CLEAN_AND_NOISY = ("test", "noisy")

LEVELS = ("accuracy", "mean confidence", "ECE-10")
"""Measures that are shown at every noise level."""


def visual_tables(records: Sequence[Record]) -> list[Table]:
    """For each task, accuracy by question kind and type, and measures by noise level."""
    tables = []
    for task in dict.fromkeys(record.experiment["task"] for record in records):
        done = [r for r in records if r.experiment["task"] == task and r.results]
        if done and isinstance(find_task(task), VqaTask):
            made = (kinds_table(done), types_table(done), noise_table(done))
            tables += [table for table in made if table.rows]
    return tables


def kinds_table(records: Sequence[Record]) -> Table:
    """Accuracy by question kind, on original and noisy images."""
    names = dict.fromkeys(name for r in records for of in r.measures.values() for name in of)
    kinds = [name for name in names if KIND.fullmatch(name) and name != CONSTANT]
    columns = {KIND.sub(r"\1", name): _accuracy(name) for name in [*kinds, CONSTANT]}
    caption = f"{_title(records)}, accuracy by kind of question, original / noisy."
    return _table(records, columns, caption) if kinds else Table([], [], caption)


def types_table(records: Sequence[Record]) -> Table:
    """Accuracy by VQA-v2's question types, the most frequent first."""
    known = [of for r in records for of in r.measures.values() if any(map(is_of_type, of))]
    rows = type_rows(known[0]) if known else {}
    lines = list(lines_by_mode(records))
    columns = [f"{line.attention}, {line.mode_name}" for line in lines]
    cells = [
        [name, str(type_count(known[0], types)), *(_type_cell(line, types) for line in lines)]
        for name, types in rows.items()
    ]
    caption = f"{_title(records)}, accuracy by type of question, original / noisy."
    return Table(["question type", "questions", *columns], cells, caption)


def noise_table(records: Sequence[Record]) -> Table:
    """Accuracy, confidence and ECE by noise variance."""
    names = dict.fromkeys(part for r in records for part in r.results["measures"])
    parts = {noise_of(part): part for part in names if part != "dev"}
    columns = {f"{variance:g}": _levels(parts[variance]) for variance in sorted(parts)}
    caption = f"{_title(records)}, accuracy / mean confidence / ECE by variance of noise."
    extra = set(parts) - {0.0, NOISE}
    return _table(records, columns, caption) if extra else Table([], [], caption)


def _title(records: Sequence[Record]) -> str:
    return find_task(records[0].experiment["task"]).title


def _type_cell(line: Line, types: list[str]) -> str:
    cells = []
    for part in CLEAN_AND_NOISY:
        found = [type_accuracy(record.of(part, line.mode), types) for record in line.group]
        cells.append(mean_and_deviation([v for v in found if v is not None], percent=True))
    return " / ".join(cells)


def _accuracy(name: str) -> Cell:
    parts = CLEAN_AND_NOISY[:1] if name == CONSTANT else CLEAN_AND_NOISY
    return lambda line: " / ".join(line.cell(part, name) for part in parts)


def _levels(part: str) -> Cell:
    return lambda line: " / ".join(line.cell(part, name) for name in LEVELS)


def _table(records: Sequence[Record], columns: dict[str, Cell], caption: str) -> Table:
    rows = [
        [line.attention, line.mode_name, *(cell(line) for cell in columns.values())]
        for line in lines_by_mode(records)
    ]
    filled = [row for row in rows if {*row[2:]} != {NONE}]
    return Table(["attention", MODE, *columns], filled, caption)
