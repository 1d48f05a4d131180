"""Tables of scores and costs: mean and standard deviation over seeds, beside the paper's values.

The rows, cells and best values of the other tables are defined here too.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from babn.evaluation.tables import Table
from babn_paper.experiments.naming import attention_name, method_of, mode_name
from babn_paper.experiments.records import Record
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.task import Task

NOT_RUN, NONE, UNDEFINED = "not run", "–", "undefined"
"""Cells of runs that were not done, of missing measures, and of measures that are NaN."""

MODE = "prediction"
"""Heading of the column with the prediction mode."""

Place = TypeVar("Place")


@dataclass(frozen=True)
class Line:
    """A row of a table: the runs of a grid cell, which differ in their seed, in one mode.

    Attributes:
        group: The runs.
        label: The label of the cell.
        mode: The prediction mode.
    """

    group: list[Record]
    label: str
    mode: str

    @property
    def experiment(self) -> dict[str, Any]:
        """Fields of the experiment; the seed is that of the first run."""
        return self.group[0].experiment

    @property
    def attention(self) -> str:
        """The attention method, with the settings that the cell varies."""
        name = attention_name(method_of(self.experiment))
        label = self.label
        for end in (self.experiment["method"], self.experiment.get("preset", "")):
            label = label.removesuffix(f"-{end}")
        return f"{name}{tried(label)}"

    @property
    def mode_name(self) -> str:
        """The name of the prediction mode."""
        return mode_name(self.experiment["method"], self.mode)

    @property
    def done(self) -> int:
        """The number of finished runs."""
        return sum(bool(record.results) for record in self.group)

    @property
    def seeds(self) -> str:
        """The number of finished runs, or of members of an ensemble."""
        return str(self.group[0].results.get("members", self.done))

    def values(self, part: str | None, measure: str, mode: str | None = None) -> list[float]:
        """A measure of every run that has it.

        Args:
            part: The part of the data; `None` for the first one.
            measure: Name of the measure.
            mode: The prediction mode, if it is not that of the line.
        """
        mode = self.mode if mode is None else mode
        found = [
            (record.measures.get(mode, {}) if part is None else record.of(part, mode)).get(measure)
            for record in self.group
        ]
        return [value for value in found if value is not None]

    def cell(self, part: str | None, measure: str, percent: bool = True) -> str:
        """Mean and standard deviation of a measure over seeds."""
        return mean_and_deviation(self.values(part, measure), percent)

    def median(self, name: str, digits: int) -> str:
        """The median over seeds of a number in the results."""
        found = [value for record in self.group if (value := record.results.get(name))]
        return f"{statistics.median(found):.{digits}f}" if found else NONE


def lines_by_mode(records: Sequence[Record]) -> Iterator[Line]:
    """A line for each cell and mode; one in mean mode for a cell that was not run."""
    for label, group in by_label(records).items():
        modes = dict.fromkeys(mode for record in group for mode in record.measures)
        yield from (Line(group, label, mode) for mode in modes or ["mean"])


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs of each cell, in order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def tried(label: str) -> str:
    """The settings in a cell's label, after task and method; the method's name has the preset."""
    settings = [each for each in label.split("+")[1:] if not each.startswith("preset=")]
    return "".join(f", {each}" for each in settings)


def mean_and_deviation(values: Sequence[float], percent: bool) -> str:
    """Mean ± standard deviation over seeds, with the number of seeds if some values are NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return UNDEFINED if values else NONE
    factor, digits = (100, 1) if percent else (1, 3)
    cell = f"{statistics.fmean(known) * factor:.{digits}f}"
    if len(known) > 1:
        cell += f" ± {statistics.stdev(known) * factor:.{digits}f}"
    return cell if len(known) == len(values) else f"{cell} ({len(known)} of {len(values)})"


def best_places(
    values: Mapping[Place, Sequence[float]], lower_is_better: bool = False
) -> set[Place]:
    """The place whose mean over seeds is clearly the best, if there is one.

    Clear is a difference of more than two standard errors from every other place; a single seed has
    no standard error. Places with a NaN are left out.

    Args:
        values: The values of every place.
        lower_is_better: Whether the smallest mean is the best.
    """
    known = {p: each for p, each in values.items() if each and not any(map(math.isnan, each))}
    if len(known) < 2:
        return set()
    choose = min if lower_is_better else max
    best = choose(known, key=lambda place: statistics.fmean(known[place]))
    clear = all(_differ(known[best], each) for place, each in known.items() if place != best)
    return {best} if clear else set()


def _differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two means differ by more than two standard errors of the difference."""
    if len(one) < 2 or len(other) < 2:
        return False
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in (one, other)))
    return abs(statistics.fmean(one) - statistics.fmean(other)) > 2 * error


def without_empty_paper_columns(table: Table) -> Table:
    """The table without columns of the paper's values that hold none."""
    for place, name in reversed(list(enumerate(table.columns))):
        if name.endswith("paper") and all(row[place] == NONE for row in table.rows):
            table = table.without(name)
    return table


@dataclass(frozen=True)
class Column:
    """A column of the table of scores.

    Attributes:
        name: Its heading.
        mode: `"mean"` or `"sampled"`.
        measure: Name of the measure; empty for the scores of the task.
        percent: Whether to show percentages.
        lower_is_better: Whether the smallest value of a task is the best.
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


class _ScoreLine(Line):
    """A row with columns for both modes; dropout has a row of its own, in the sampled columns."""

    @property
    def task(self) -> Task[Any]:
        return find_task(self.experiment["task"])

    @property
    def name(self) -> str:
        return f"{self.attention}, {self.mode_name}" if self.mode == "dropout" else self.attention

    def of(self, column: Column, measure: str) -> list[float]:
        if self.mode == "dropout":
            return self.values(None, measure) if column.mode == "sampled" else []
        return self.values(None, measure, column.mode)

    def shown(self, column: Column) -> str:
        names = (column.measure,) if column.measure else self.task.scores
        cells = [mean_and_deviation(self.of(column, name), column.percent) for name in names]
        return " / ".join(cells) if NONE not in cells else NONE

    def row(self) -> list[str]:
        printed = {} if self.mode == "dropout" else self.experiment["paper"]
        scores = self.task.scores
        paper = " / ".join(printed.get(score, "") for score in scores).strip(" /")
        cells = [self.shown(column) if self.done else NOT_RUN for column in COLUMNS]
        return [self.task.title, self.name, " / ".join(scores), paper or NONE, *cells, self.seeds]


def results_table(records: Sequence[Record], caption: str = "") -> Table:
    """A row for each cell, with values that are clearly the best of their task marked."""
    lines: list[_ScoreLine] = []
    for label, group in by_label(records).items():
        lines.append(_ScoreLine(group, label, "mean"))
        if any("dropout" in record.measures for record in group):
            lines.append(_ScoreLine(group, label, "dropout"))
    names = ["task", "attention", "measure", "paper", *(c.name for c in COLUMNS), "seeds"]
    table = Table(names, [line.row() for line in lines], caption, frozenset(_best(lines)))
    return without_empty_paper_columns(table)


def _best(lines: Sequence[_ScoreLine]) -> set[tuple[int, int]]:
    """Places of the best mean of each task, over both modes."""
    places: set[tuple[int, int]] = set()
    for task in dict.fromkeys(line.task.name for line in lines):
        rows = [i for i, line in enumerate(lines) if line.task.name == task]
        for pair in range(0, len(COLUMNS) if len(rows) > 1 else 0, 2):
            values = {
                (row, 4 + place): lines[row].of(
                    COLUMNS[place], COLUMNS[place].measure or lines[row].task.scores[-1]
                )
                for row in rows
                for place in (pair, pair + 1)
            }
            places |= best_places(values, COLUMNS[pair].lower_is_better)
    return places


def efficiency_table(records: Sequence[Record], caption: str = "") -> Table:
    """Number of parameters and seconds per step, beside the paper's."""
    rows = []
    single = [record for record in records if record.experiment["method"] != "ensemble"]
    for label, group in by_label(single).items():
        line = Line(group, label, "mean")
        done = [each.results for each in group if each.results]
        paper, seconds = line.experiment["paper"], line.median("seconds_per_step", 3)
        rows.append(
            [
                line.attention,
                paper.get("parameters", NONE),
                f"{done[0]['parameters'] / 1e6:.1f}M" if done else NOT_RUN,
                paper.get("s/step", NONE),
                NOT_RUN if seconds == NONE else seconds,
            ]
        )
    head = ["attention", "parameters, paper", "parameters", "s/step, paper", "s/step"]
    return without_empty_paper_columns(Table(head, rows, caption))
