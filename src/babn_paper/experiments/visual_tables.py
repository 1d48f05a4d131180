"""Further tables of questions about images: by kind and type of question, and by noise."""

import re
from collections.abc import Callable, Iterator, Sequence

from babn.evaluation.tables import Table
from babn_paper.experiments.naming import mode_name, rule_name
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import NONE, by_label, mean_and_deviation, tried
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.vqa import NOISE, VqaTask, noise_of
from babn_paper.tasks.vqa_metrics import is_of_type, type_accuracy, type_count, type_rows
from babn_paper.tasks.vqa_predictions import CONSTANT

KIND = re.compile(r"accuracy \((.+)\)")

Cell = Callable[[list[Record], str], str]
"""Shows the runs of a cell that were asked in one way."""

LEVELS = ("accuracy", "mean confidence", "ECE-10")
"""Measures that are shown at every level of noise."""


def visual_tables(records: Sequence[Record]) -> list[Table]:
    """Accuracy by kind and type of question, and measures by level of noise, for each task."""
    tables = []
    for task in dict.fromkeys(record.experiment["task"] for record in records):
        own = [r for r in records if r.experiment["task"] == task and r.results]
        if own and isinstance(find_task(task), VqaTask):
            made = (kinds_table(own), types_table(own), noise_table(own))
            tables += [table for table in made if table.rows]
    return tables


def kinds_table(records: Sequence[Record]) -> Table:
    """Accuracy by kind of question, on original and noisy images."""
    kinds = [name for name in _names(records) if KIND.fullmatch(name) and name != CONSTANT]
    columns = {KIND.sub(r"\1", name): _accuracy(name) for name in [*kinds, CONSTANT]}
    title = find_task(records[0].experiment["task"]).title
    caption = f"{title}, accuracy by kind of question, original / noisy."
    return _table(records, columns, caption) if kinds else Table([], [], caption)


def types_table(records: Sequence[Record]) -> Table:
    """Accuracy by VQA-v2's types of questions, the most frequent first."""
    known = [of for r in records for of in r.measures.values() if any(map(is_of_type, of))]
    rows = type_rows(known[0]) if known else {}
    lines = [*_lines(records)]
    columns = [f"{name}, {_asked(group, mode)}" for name, group, mode in lines]
    cells = [
        [row, str(type_count(known[0], types)), *(_of_type(g, mode, types) for _, g, mode in lines)]
        for row, types in rows.items()
    ]
    title = find_task(records[0].experiment["task"]).title
    caption = f"{title}, accuracy by type of question, original / noisy."
    return Table(["question type", "questions", *columns], cells, caption)


def _of_type(group: list[Record], mode: str, types: list[str]) -> str:
    return " / ".join(
        mean_and_deviation([value for value in found if value is not None], percent=True)
        for part in ("test", "noisy")
        for found in [[type_accuracy(record.of(part, mode), types) for record in group]]
    )


def noise_table(records: Sequence[Record]) -> Table:
    """Accuracy, confidence and ECE over the variance of noise."""
    parts = {noise_of(part): part for part in _parts(records) if part != "dev"}
    columns = {f"{variance:g}": _levels(parts[variance]) for variance in sorted(parts)}
    title = find_task(records[0].experiment["task"]).title
    caption = f"{title}, accuracy / mean confidence / ECE by variance of noise."
    extra = set(parts) - {0.0, NOISE}
    return _table(records, columns, caption) if extra else Table([], [], caption)


def _accuracy(name: str) -> Cell:
    def cell(group: list[Record], mode: str) -> str:
        shown = [_shown(group, part, mode, name) for part in ("test", "noisy")]
        return shown[0] if name == CONSTANT else " / ".join(shown)

    return cell


def _levels(part: str) -> Cell:
    return lambda group, mode: " / ".join(_shown(group, part, mode, name) for name in LEVELS)


def _shown(group: list[Record], part: str, mode: str, name: str) -> str:
    found = [record.measure(part, mode, name) for record in group]
    return mean_and_deviation([value for value in found if value is not None], percent=True)


def _table(records: Sequence[Record], columns: dict[str, Cell], caption: str) -> Table:
    rows = [
        [name, _asked(group, mode), *(cell(group, mode) for cell in columns.values())]
        for name, group, mode in _lines(records)
    ]
    whole = [row for row in rows if {*row[2:]} != {NONE}]
    return Table(["attention", "asked", *columns], whole, caption)


def _lines(records: Sequence[Record]) -> Iterator[tuple[str, list[Record], str]]:
    for label, group in by_label(records).items():
        rule = group[0].experiment["rule"]
        name = f"{rule_name(rule)}{tried(label.removesuffix(f'-{rule}'))}"
        for mode in dict.fromkeys(mode for record in group for mode in record.measures):
            yield name, group, mode


def _asked(group: list[Record], mode: str) -> str:
    return mode_name(group[0].experiment["rule"], mode)


def _names(records: Sequence[Record]) -> list[str]:
    return [*dict.fromkeys(name for r in records for of in r.measures.values() for name in of)]


def _parts(records: Sequence[Record]) -> list[str]:
    return [*dict.fromkeys(part for r in records for part in r.results["measures"])]
