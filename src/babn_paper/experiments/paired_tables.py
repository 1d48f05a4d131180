"""Tables of models tested on two parts: in and out of domain, or on clean and noisy images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from babn_paper.tasks.catalogue import find_task


@dataclass(frozen=True)
class Pair:
    """A column with the values of a measure for both parts.

    Attributes:
        name: Its heading.
        measure: Name of the measure in the results.
        last: Whether only the value of the second part is shown.
        percent: Whether to show percentages.
        lower_is_better: Whether the smallest value is the best.
        paper: Name of the measure among the paper's values, if the paper has it.
        sampled: Whether the paper's values are of sampled predictions rather than point estimates.
    """

    name: str
    measure: str
    last: bool = False
    percent: bool = True
    lower_is_better: bool = True
    paper: str = ""
    sampled: bool = False


@dataclass(frozen=True)
class Layout:
    """Parts and columns of a table.

    Attributes:
        parts: The two parts of the data.
        columns: The measures.
        explanation: The meaning of the cells.
        sources: The origin of the paper's values, if it is not the paper itself.
    """

    parts: tuple[str, str]
    columns: tuple[Pair, ...]
    explanation: str
    sources: str = ""

    def cell(self, line: Line, column: Pair) -> str:
        """The values of a line for both parts."""
        cells = [
            line.cell(part, column.measure, column.percent) for part in self.parts[column.last :]
        ]
        return " / ".join(cells) if {*cells} != {NONE} else NONE

    def paper_cell(self, line: Line, column: Pair) -> str:
        """The paper's values, if the line has the paper's prediction mode."""
        if line.done and column.sampled == (line.mode == "mean"):
            return NONE
        printed = line.experiment["paper"]
        cells = [printed.get(f"{column.paper} ({part})", NONE) for part in self.parts]
        return NONE if cells == [NONE, NONE] else " / ".join(cells)

    def row(self, line: Line) -> list[str]:
        """The cells of a line."""
        cells: list[str] = []
        for column in self.columns:
            cells += [self.paper_cell(line, column)] if column.paper else []
            cells.append(self.cell(line, column) if line.done else NOT_RUN)
        title, model = line.group[0].title, Path(line.experiment["model"]).name
        return [title, model, line.attention, line.mode_name, *cells, line.seeds]


DOMAIN_COLUMNS = (
    Pair("accuracy", "accuracy", lower_is_better=False, paper="accuracy"),
    Pair("ECE", "ECE-10", paper="ECE"),
    Pair("ECE + TS", "ECE-10 + TS (in domain)", paper="ECE + TS"),
    Pair("NLL", "NLL", percent=False),
    Pair("AURC", "AURC"),
    Pair("OOD AUROC, entropy", "OOD AUROC (entropy)", last=True, lower_is_better=False),
    Pair("OOD AUROC, MI", "OOD AUROC (mutual information)", last=True, lower_is_better=False),
)

VISUAL_COLUMNS = (
    Pair("accuracy", "accuracy", lower_is_better=False, paper="accuracy"),
    Pair("PAvPU", "PAvPU (p<0.05)", lower_is_better=False, paper="PAvPU", sampled=True),
    Pair("ECE", "ECE-10"),
    Pair("ECE + TS", "ECE-10 + TS"),
    Pair("NLL", "NLL", percent=False),
    Pair("error AUROC", "error AUROC (confidence)", lower_is_better=False),
    Pair("error AUROC, MI", "error AUROC (mutual information)", lower_is_better=False),
)

DOMAINS = Layout(
    ("test", "out"),
    DOMAIN_COLUMNS,
    "Cells are in / out of domain. + TS is after temperature scaling, fitted on in-domain "
    "development data.",
    "The paper quotes the numbers for softmax from Desai and Durrett (2020); the numbers with "
    "temperature scaling or label smoothing are only in their paper.",
)
VISUAL = Layout(
    ("test", "noisy"),
    VISUAL_COLUMNS,
    "Cells are for original / noisy images; the noise on image features has variance 5.",
)
LAYOUTS = (DOMAINS, VISUAL)


def layout_of(records: Sequence[Record]) -> Layout | None:
    """The layout for the parts that the runs were tested on, if there is one."""
    parts = {part for record in records for part in record.results.get("measures", {})}
    if not parts:
        parts = {part for r in records for part in find_task(r.experiment["task"]).test_parts}
    return next((each for each in LAYOUTS if each.parts[1] in parts), None)


def paired_table(records: Sequence[Record], layout: Layout, caption: str = "") -> Table:
    """A row for each cell and mode, with the values of both parts."""
    lines = list(lines_by_mode(records))
    head = ["task", "model", "attention", MODE]
    for column in layout.columns:
        head += [f"{column.name}, paper", column.name] if column.paper else [column.name]
    head.append("seeds")
    printed = any(line.experiment["paper"] for line in lines)
    text = caption or f"{layout.explanation} {layout.sources if printed else ''}".strip()
    table = Table(head, [layout.row(line) for line in lines], text, _best(lines, layout, head))
    return without_empty_paper_columns(table)


def _best(lines: Sequence[Line], layout: Layout, head: list[str]) -> frozenset[tuple[int, int]]:
    """Places of the best values of the second part, for each task and model."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, line in enumerate(lines):
        groups.setdefault((line.experiment["task"], line.experiment["model"]), []).append(row)
    return frozenset(
        (row, head.index(column.name))
        for rows in groups.values()
        for column in layout.columns
        for row in best_places(
            {row: lines[row].values(layout.parts[1], column.measure) for row in rows},
            column.lower_is_better,
        )
    )
