"""Tables of many runs: mean and deviation over seeds, beside the paper's numbers."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from babn.evaluation.tables import Table
from babn_paper.experiments.naming import mode_name, rule_name
from babn_paper.experiments.records import Record
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.task import Task

NOT_RUN, NONE, UNDEFINED = "not run", "–", "undefined"
"""Cells of what was not run, of what is not measured, and of what has no value in any run."""


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        name: Its head.
        mode: How the model was asked.
        measure: Name of the measure; empty for the task's scores.
        percent: Whether to show hundredths.
        lower_is_better: Whether the smallest number of a task is the best.
    """

    name: str
    mode: str
    measure: str = ""
    percent: bool = True
    lower_is_better: bool = True


COLUMNS = (
    Column("score, mean", "mean", lower_is_better=False),
    Column("score, sampled", "sampled", lower_is_better=False),
    Column("NLL, mean", "mean", "NLL", percent=False),
    Column("NLL, sampled", "sampled", "NLL", percent=False),
    Column("ECE, mean", "mean", "ECE-10"),
    Column("ECE, sampled", "sampled", "ECE-10"),
    Column("ECE + TS, mean", "mean", "ECE-10 + TS"),
    Column("ECE + TS, sampled", "sampled", "ECE-10 + TS"),
)


def results_table(records: Sequence[Record], caption: str = "") -> Table:
    """One row for each cell, the paper's numbers first if there are any; the best are marked."""
    lines = [line for label, group in by_label(records).items() for line in _lines(label, group)]
    names = ["task", "attention", "measure", "paper", *(c.name for c in COLUMNS), "seeds"]
    table = Table(names, [_row(line) for line in lines], caption, frozenset(_best(lines)))
    return with_papers_numbers(table)


def with_papers_numbers(table: Table) -> Table:
    """The table with those columns of the paper's numbers that hold any."""
    for place, name in reversed(list(enumerate(table.columns))):
        if name.endswith("paper") and all(row[place] == NONE for row in table.rows):
            table = table.without(name)
    return table


def efficiency_table(records: Sequence[Record], caption: str = "") -> Table:
    """Parameters and seconds for a step, beside the paper's."""
    rows = []
    single = [record for record in records if record.experiment["rule"] != "ensemble"]
    for label, group in by_label(single).items():
        done = [each.results for each in group if each.results]
        paper = group[0].experiment["paper"]
        parameters = f"{done[0]['parameters'] / 1e6:.1f}M" if done else NOT_RUN
        seconds = [each["seconds_per_step"] for each in done if each["seconds_per_step"]]
        rows.append(
            [
                f"{rule_name(group[0].experiment['rule'])}{tried(label)}",
                paper.get("parameters", NONE),
                parameters,
                paper.get("s/step", NONE),
                f"{statistics.median(seconds):.3f}" if seconds else NOT_RUN,
            ]
        )
    head = ["attention", "parameters, paper", "parameters", "s/step, paper", "s/step"]
    return with_papers_numbers(Table(head, rows, caption))


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Runs of each cell, in order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


@dataclass(frozen=True)
class _Line:
    """A row of the table: the runs of a cell, asked in one of the ways that belong together."""

    name: str
    group: list[Record]
    modes: dict[str, str]  # the columns' modes, and the runs'

    @property
    def task(self) -> Task[Any]:
        return find_task(self.group[0].experiment["task"])

    def values(self, mode: str, measure: str) -> list[float]:
        """A measure of every run that has it."""
        wanted = self.modes.get(mode, "")
        found = [record.measures.get(wanted, {}).get(measure) for record in self.group]
        return [value for value in found if value is not None]


def _lines(label: str, group: list[Record]) -> Iterator[_Line]:
    name = f"{rule_name(group[0].experiment['rule'])}{tried(label)}"
    yield _Line(name, group, {"mean": "mean", "sampled": "sampled"})
    if any("dropout" in record.measures for record in group):
        asked = mode_name(group[0].experiment["rule"], "dropout")
        yield _Line(f"{name}, {asked}", group, {"sampled": "dropout"})


def _row(line: _Line) -> list[str]:
    done = sum(bool(each.results) for each in line.group)
    printed = line.group[0].experiment["paper"] if "mean" in line.modes else {}
    paper = " / ".join(printed.get(score, "") for score in line.task.scores).strip(" /")
    cells = [_cell(line, column) if done else NOT_RUN for column in COLUMNS]
    members = line.group[0].results.get("members", done)
    scores = " / ".join(line.task.scores)
    return [line.task.title, line.name, scores, paper or NONE, *cells, str(members)]


def _rule(record: Record) -> str:
    return rule_name(record.experiment["rule"])


def tried(label: str) -> str:
    """What a cell's label says beside task and rule."""
    _, plus, settings = label.partition("+")
    return f", {settings.replace('+', ', ')}" if plus else ""


def _cell(line: _Line, column: Column) -> str:
    names = (column.measure,) if column.measure else line.task.scores
    shown = [mean_and_deviation(line.values(column.mode, n), column.percent) for n in names]
    return " / ".join(shown) if NONE not in shown else NONE


def mean_and_deviation(values: list[float], percent: bool) -> str:
    """A cell of numbers from several seeds; it says for how many of them there is a number."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return UNDEFINED if values else NONE
    factor, digits = (100, 1) if percent else (1, 3)
    cell = f"{statistics.fmean(known) * factor:.{digits}f}"
    if len(known) > 1:
        cell += f" ± {statistics.stdev(known) * factor:.{digits}f}"
    return cell if len(known) == len(values) else f"{cell} ({len(known)} of {len(values)})"


def average(values: list[float]) -> float | None:
    """What cells are compared by; `None` unless there is a number for every seed."""
    found = statistics.fmean(values) if values else math.nan
    return None if math.isnan(found) else found


def _best(lines: list[_Line]) -> list[tuple[int, int]]:
    """Places of the best mean of each task, in mean and sampled mode together."""
    places = []
    for task in dict.fromkeys(line.task.name for line in lines):
        rows = [i for i, line in enumerate(lines) if line.task.name == task]
        for pair in range(0, len(COLUMNS), 2):
            found = {
                (row, 4 + place): mean
                for row in rows
                for place in (pair, pair + 1)
                if (mean := average(_values(lines[row], COLUMNS[place]))) is not None
            }
            if len(rows) > 1 and found:
                choose: Callable[..., float] = min if COLUMNS[pair].lower_is_better else max
                best = choose(found.values())
                places += [place for place, value in found.items() if value == best]
    return places


def _values(line: _Line, column: Column) -> list[float]:
    return line.values(column.mode, column.measure or line.task.scores[-1])
