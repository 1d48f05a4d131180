"""Tables of models that were trained in one domain and tested in two."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from babn.evaluation.tables import Table
from babn.experiments.naming import MODES, rule_name
from babn.experiments.records import Record
from babn.experiments.result_tables import (
    NONE,
    NOT_RUN,
    by_label,
    mean_and_deviation,
    tried,
)
from babn.tasks.catalogue import find_task

IN, OUT = "test", "out"


@dataclass(frozen=True)
class Pair:
    """A column with a measure in both domains.

    Attributes:
        name: Its head.
        measure: What the runs call it.
        parts: The parts that it is shown of.
        percent: Whether to show hundredths.
        lower_is_better: Whether the smallest number is the best.
        paper: What a configuration's paper numbers call it, if it has a column there.
    """

    name: str
    measure: str
    parts: tuple[str, ...] = (IN, OUT)
    percent: bool = True
    lower_is_better: bool = True
    paper: str = ""


COLUMNS = (
    Pair("accuracy", "accuracy", lower_is_better=False, paper="accuracy"),
    Pair("ECE", "ECE-10", paper="ECE"),
    Pair("ECE + TS", "ECE-10 + TS (in domain)"),
    Pair("NLL", "NLL", percent=False),
    Pair("AURC", "AURC"),
    Pair("OOD AUROC, entropy", "OOD AUROC (entropy)", (OUT,), lower_is_better=False),
    Pair("OOD AUROC, MI", "OOD AUROC (mutual information)", (OUT,), lower_is_better=False),
)

EXPLANATION = (
    "Cells are in / out of domain. + TS divides by the temperature that fits the in-domain "
    "development data."
)


@dataclass(frozen=True)
class _Line:
    group: list[Record]
    label: str
    mode: str

    def values(self, part: str, column: Pair) -> list[float]:
        found = [record.measure(part, self.mode, column.measure) for record in self.group]
        return [value for value in found if value is not None]

    def paper(self, column: Pair) -> str:
        """The paper's numbers, which are of point estimates."""
        if self.mode != "mean":
            return NONE
        printed = self.group[0].experiment["paper"]
        return " / ".join(printed.get(f"{column.paper} ({part})", NONE) for part in (IN, OUT))


def domains_table(records: Sequence[Record], caption: str = "") -> Table:
    """One row for each cell and way to ask; numbers in both domains, and the paper's."""
    lines = list(_lines(records))
    head = ["task", "model", "attention", "asked"]
    for column in COLUMNS:
        head += [f"{column.name}, paper", column.name] if column.paper else [column.name]
    head.append("seeds")
    best = frozenset(_best(lines, head))
    return Table(head, [_row(line) for line in lines], caption or EXPLANATION, best)


def _lines(records: Sequence[Record]) -> Iterator[_Line]:
    for label, group in by_label(records).items():
        found = dict.fromkeys(mode for record in group for mode in record.measures)
        yield from (_Line(group, label, mode) for mode in found or ["mean"])


def _row(line: _Line) -> list[str]:
    first = line.group[0]
    done = sum(bool(record.results) for record in line.group)
    cells: list[str] = []
    for column in COLUMNS:
        cells += [line.paper(column)] if column.paper else []
        shown = [mean_and_deviation(line.values(p, column), column.percent) for p in column.parts]
        cells.append(" / ".join(shown) if done else NOT_RUN)
    return [
        find_task(first.experiment["task"]).title,
        Path(first.experiment["model"]).name,
        f"{rule_name(first.experiment['rule'])}{tried(line.label)}",
        MODES.get(line.mode, line.mode),
        *cells,
        str(first.results.get("members", done)),
    ]


def _best(lines: list[_Line], head: list[str]) -> Iterator[tuple[int, int]]:
    """Places of the lines that are best out of domain, among those of a task and model."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, line in enumerate(lines):
        experiment = line.group[0].experiment
        groups.setdefault((experiment["task"], experiment["model"]), []).append(row)
    for rows in groups.values():
        for column in COLUMNS:
            found = {
                row: statistics.fmean(values)
                for row in rows
                if (values := lines[row].values(OUT, column))
            }
            choose: Callable[..., float] = min if column.lower_is_better else max
            if len(found) > 1:
                best = choose(found.values())
                yield from ((r, head.index(column.name)) for r, v in found.items() if v == best)
