"""Tables of many runs: mean and deviation over seeds, beside the paper's numbers."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from babn.evaluation.tables import Table
from babn.experiments.records import Record
from babn.tasks.catalogue import find_task

NAMES = {"softmax": "softmax", "bam": "BAM", "belief": "BABN", "mc-dropout": "MC dropout"}
NOT_RUN, NONE = "not run", "–"


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
    """One row for each cell, with the paper's number first; the best of each task is marked."""
    groups = by_label(records)
    rows = [_row(label, group) for label, group in groups.items()]
    names = ["task", "attention", "measure", "paper", *(c.name for c in COLUMNS), "seeds"]
    return Table(names, rows, caption, frozenset(_best(list(groups.values()))))


def efficiency_table(records: Sequence[Record], caption: str = "") -> Table:
    """Parameters and seconds for a step, beside the paper's."""
    rows = []
    for label, group in by_label(records).items():
        done = [each.results for each in group if each.results]
        paper = group[0].experiment["paper"]
        parameters = f"{done[0]['parameters'] / 1e6:.1f}M" if done else NOT_RUN
        seconds = [each["seconds_per_step"] for each in done if each["seconds_per_step"]]
        rows.append(
            [
                f"{_name(group[0])}{_tried(label)}",
                paper.get("parameters", NONE),
                parameters,
                paper.get("s/step", NONE),
                f"{statistics.median(seconds):.3f}" if seconds else NOT_RUN,
            ]
        )
    head = ["attention", "parameters, paper", "parameters", "s/step, paper", "s/step"]
    return Table(head, rows, caption)


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Runs of each cell, in order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def _row(label: str, group: list[Record]) -> list[str]:
    first, task = group[0].experiment, find_task(group[0].experiment["task"])
    done = sum(bool(each.results) for each in group)
    paper = " / ".join(first["paper"].get(score, "") for score in task.scores).strip(" /")
    cells = [_cell(group, column, task.scores) if done else NOT_RUN for column in COLUMNS]
    name = f"{_name(group[0])}{_tried(label)}"
    return [task.title, name, " / ".join(task.scores), paper or NONE, *cells, str(done)]


def _name(record: Record) -> str:
    rule = record.experiment["rule"]
    return NAMES.get(rule, rule)


def _tried(label: str) -> str:
    """What a cell's label says beside task and rule."""
    _, plus, settings = label.partition("+")
    return f", {settings.replace('+', ', ')}" if plus else ""


def _cell(group: list[Record], column: Column, scores: tuple[str, ...]) -> str:
    names = (column.measure,) if column.measure else scores
    shown = [_mean_and_deviation(numbers(group, column.mode, n), column.percent) for n in names]
    return " / ".join(shown) if NONE not in shown else NONE


def numbers(group: Sequence[Record], mode: str, measure: str) -> list[float]:
    """A measure of every run of a cell that has it."""
    found = [record.measures.get(mode, {}).get(measure) for record in group]
    return [value for value in found if value is not None]


def _mean_and_deviation(values: list[float], percent: bool) -> str:
    if not values:
        return NONE
    factor, digits = (100, 1) if percent else (1, 3)
    mean = statistics.fmean(values) * factor
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values) * factor:.{digits}f}"


def _best(groups: list[list[Record]]) -> list[tuple[int, int]]:
    """Places of the best mean of each task, in mean and sampled mode together."""
    places = []
    for task in {group[0].experiment["task"] for group in groups}:
        rows = [i for i, group in enumerate(groups) if group[0].experiment["task"] == task]
        for pair in range(0, len(COLUMNS), 2):
            found = {
                (row, 4 + place): statistics.fmean(values)
                for row in rows
                for place in (pair, pair + 1)
                if (values := _values(groups[row], COLUMNS[place]))
            }
            if len(rows) > 1 and found:
                choose: Callable[..., float] = min if COLUMNS[pair].lower_is_better else max
                best = choose(found.values())
                places += [place for place, value in found.items() if value == best]
    return places


def _values(group: list[Record], column: Column) -> list[float]:
    scores = find_task(group[0].experiment["task"]).scores
    return numbers(group, column.mode, column.measure or scores[-1])
