"""Tables of tasks with two test parts, of translation, and of visual question answering."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
    mean_and_deviation,
    without_empty_paper_columns,
)
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.vqa import NOISE, VqaTask, noise_of
from babn_paper.tasks.vqa_predictions import (
    CONSTANT,
    is_of_type,
    type_accuracy,
    type_count,
    type_rows,
)


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
    "Cells are in / out of domain. + TS divides by the temperature that fits the in-domain "
    "development data.",
    "The paper quotes softmax's numbers from Desai and Durrett (2020); those with temperature "
    "scaling or label smoothing are theirs alone.",
)
VISUAL = Layout(
    ("test", "noisy"),
    VISUAL_COLUMNS,
    "Cells are on original / noisy data, whose noise on image features has variance 5.",
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


PARTS = ("test", "dev")
"""Scores are of the first of these parts that a run has."""

OUT = "out-test"
"""The test part of the other domain."""

SCORES = ("BLEU", "sacreBLEU", "chrF")

UNCERTAINTIES = ("NLL", "entropy", "mutual information", "spread")

EXPLANATION = (
    "Mean ± standard deviation over seeds; scores are percentages. "
    "BLEU is that of multi-bleu.perl over tokenised text. chrF ~ a measure of uncertainty is "
    "Spearman's correlation over the sentences; the closer to -1, the better the measure detects "
    "bad translations. MC dropout judges the translations of the mean. Words are pieces of words."
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
