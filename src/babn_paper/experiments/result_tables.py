"""Tables of scores and costs: mean and standard deviation over seeds, beside the paper's values.

The rows, columns and best values of the other tables are defined here too.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        """Fields of the experiment, with the seed of the first run."""
        return self.group[0].experiment

    @property
    def task(self) -> Task[Any]:
        """The task."""
        return find_task(self.experiment["task"])

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

    def cells(self, places: Iterable[tuple[str, str]], percent: bool = True) -> str:
        """The cells of several measures, each with its part; a dash if no run has any of them."""
        found = [self.cell(part, measure, percent) for part, measure in places]
        return " / ".join(found) if {*found} != {NONE} else NONE

    def median(self, name: str, digits: int, missing: str = NONE) -> str:
        """The median over seeds of a number in the results."""
        found = [value for record in self.group if (value := record.results.get(name))]
        return f"{statistics.median(found):.{digits}f}" if found else missing

    @property
    def parameters(self) -> str:
        """The number of parameters of a finished run."""
        done = next(record.results for record in self.group if record.results)
        return f"{done['parameters'] / 1e6:.1f}M"


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


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        cell: Makes the cell of a line.
        values: The values of a line, by which the best line is found; `None` to mark none.
        lower_is_better: Whether the smallest value is the best.
        rivals: Columns with the same text share one best value.
        measured: Whether the cell needs a finished run.
    """

    name: str
    cell: Callable[[Line], str]
    values: Callable[[Line], Sequence[float]] | None = None
    lower_is_better: bool = False
    rivals: str = ""
    measured: bool = True

    def shown(self, line: Line) -> str:
        """The cell of a line."""
        return NOT_RUN if self.measured and not line.done else self.cell(line)


def fixed(name: str, cell: Callable[[Line], str]) -> Column:
    """A column that does not depend on results."""
    return Column(name, cell, measured=False)


def printed(name: str, measure: str) -> Column:
    """A column with the paper's values of a measure, which are of point estimates."""

    def cell(line: Line) -> str:
        paper: dict[str, str] = line.experiment["paper"] if line.mode == "mean" else {}
        return paper.get(measure, NONE)

    return fixed(f"{name}, paper", cell)


ATTENTION = fixed("attention", lambda line: line.attention)
PREDICTION = fixed(MODE, lambda line: line.mode_name)
SEEDS = fixed("seeds", lambda line: line.seeds)


def table_of(
    lines: Sequence[Line],
    columns: Sequence[Column],
    caption: str = "",
    group: Callable[[Line], Any] = lambda line: None,
) -> Table:
    """A row for each line, with the values marked that are clearly the best of their group.

    Args:
        lines: The rows.
        columns: The columns; those of the paper's values are left out if they are empty.
        caption: The caption.
        group: The group of a line; a line alone in its group has no best value.
    """
    sizes = Counter(map(group, lines))
    rivals: dict[Any, dict[tuple[int, int], Sequence[float]]] = {}
    for row, line in enumerate(lines):
        for place, column in enumerate(columns):
            if column.values is not None and sizes[group(line)] > 1:
                key = group(line), column.rivals or column.name, column.lower_is_better
                rivals.setdefault(key, {})[row, place] = column.values(line)
    best = [best_places(values, lower) for (_, _, lower), values in rivals.items()]
    rows = [[column.shown(line) for column in columns] for line in lines]
    names = [column.name for column in columns]
    table = Table(names, rows, caption, frozenset().union(*best))
    for place, name in reversed(list(enumerate(names))):
        if name.endswith("paper") and all(row[place] == NONE for row in rows):
            table = table.without(name)
    return table


def _score(
    name: str, mode: str, measure: str = "", percent: bool = True, lower_is_better: bool = True
) -> Column:
    """A column of the table of scores.

    Dropout has a row of its own, with cells in the sampled columns.

    Args:
        name: Beginning of its heading.
        mode: `"mean"` or `"sampled"`.
        measure: Name of the measure; empty for the scores of the task.
        percent: Whether to show percentages.
        lower_is_better: Whether the smallest value of a task is the best.
    """

    def values(line: Line, measure: str) -> list[float]:
        if line.mode == "dropout":
            return line.values(None, measure) if mode == "sampled" else []
        return line.values(None, measure, mode)

    def measures(line: Line) -> tuple[str, ...]:
        return (measure,) if measure else line.task.scores

    def cell(line: Line) -> str:
        cells = [mean_and_deviation(values(line, each), percent) for each in measures(line)]
        return " / ".join(cells) if NONE not in cells else NONE

    def decisive(line: Line) -> list[float]:
        return values(line, measures(line)[-1])

    return Column(f"{name}, {mode}", cell, decisive, lower_is_better, rivals=name)


def _score_in_paper(line: Line) -> str:
    paper: dict[str, str] = {} if line.mode == "dropout" else line.experiment["paper"]
    return " / ".join(paper.get(score, "") for score in line.task.scores).strip(" /") or NONE


def _method_or_dropout(line: Line) -> str:
    return f"{line.attention}, {line.mode_name}" if line.mode == "dropout" else line.attention


SCORES = (
    fixed("task", lambda line: line.task.title),
    fixed("attention", _method_or_dropout),
    fixed("measure", lambda line: " / ".join(line.task.scores)),
    fixed("paper", _score_in_paper),
    _score("score", "mean", lower_is_better=False),
    _score("score", "sampled", lower_is_better=False),
    _score("NLL", "mean", "NLL", percent=False),
    _score("NLL", "sampled", "NLL", percent=False),
    _score("ECE", "mean", "ECE-10"),
    _score("ECE", "sampled", "ECE-10"),
    _score("ECE + TS", "mean", "ECE-10 + TS"),
    _score("ECE + TS", "sampled", "ECE-10 + TS"),
    SEEDS,
)


def results_table(records: Sequence[Record], caption: str = "") -> Table:
    """A row for each cell, with values that are clearly the best of their task marked."""
    lines: list[Line] = []
    for label, group in by_label(records).items():
        lines.append(Line(group, label, "mean"))
        if any("dropout" in record.measures for record in group):
            lines.append(Line(group, label, "dropout"))
    return table_of(lines, SCORES, caption, lambda line: line.task.name)


COSTS = (
    printed("parameters", "parameters"),
    Column("parameters", lambda line: line.parameters),
    printed("s/step", "s/step"),
    Column("s/step", lambda line: line.median("seconds_per_step", 3, NOT_RUN)),
)
"""Number of parameters and seconds per step, beside the paper's."""


def efficiency_table(records: Sequence[Record], caption: str = "") -> Table:
    """The costs of each cell."""
    single = [record for record in records if record.experiment["method"] != "ensemble"]
    lines = [Line(group, label, "mean") for label, group in by_label(single).items()]
    return table_of(lines, (ATTENTION, *COSTS), caption)
