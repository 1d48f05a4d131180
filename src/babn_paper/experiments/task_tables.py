"""Tables of tasks with two test parts, of translation, and of visual question answering."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.evaluation.tables import Table
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import (
    ATTENTION,
    COSTS,
    NONE,
    PREDICTION,
    SEEDS,
    Column,
    Line,
    fixed,
    lines_by_mode,
    mean_and_deviation,
    printed,
    table_of,
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

    def made(self, pair: Pair) -> list[Column]:
        """The column of a measure, after one of the paper's values if it has the measure."""

        def cell(line: Line) -> str:
            places = [(part, pair.measure) for part in self.parts[pair.last :]]
            return line.cells(places, pair.percent)

        def in_paper(line: Line) -> str:
            if line.done and pair.sampled == (line.mode == "mean"):
                return NONE
            paper = line.experiment["paper"]
            cells = [paper.get(f"{pair.paper} ({part})", NONE) for part in self.parts]
            return " / ".join(cells) if {*cells} != {NONE} else NONE

        def values(line: Line) -> list[float]:
            return line.values(self.parts[1], pair.measure)

        own = Column(pair.name, cell, values, pair.lower_is_better)
        return [fixed(f"{pair.name}, paper", in_paper), own] if pair.paper else [own]


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
    """A row for each cell and mode, with the values of both parts; the second part decides."""
    lines = list(lines_by_mode(records))
    columns = [
        fixed("task", lambda line: line.group[0].title),
        fixed("model", lambda line: Path(line.experiment["model"]).name),
        ATTENTION,
        PREDICTION,
        *(column for pair in layout.columns for column in layout.made(pair)),
        SEEDS,
    ]
    in_paper = any(line.experiment["paper"] for line in lines)
    text = caption or f"{layout.explanation} {layout.sources if in_paper else ''}".strip()
    return table_of(
        lines, columns, text, lambda line: (line.experiment["task"], line.experiment["model"])
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
    across = any(OUT in record.results.get("measures", {}) for record in records)
    notes = sorted({n for r in records for n in r.results.get("notes", {}).values()})
    text = " ".join([EXPLANATION, *(f"sacreBLEU: {note}." for note in notes)])
    columns = [
        ATTENTION,
        PREDICTION,
        printed("BLEU", "BLEU"),
        *map(_translation_score, SCORES),
        *(_translation_score(score, OUT) for score in SCORES[::2] if across),
        *map(_correlation, UNCERTAINTIES),
        *COSTS,
        Column("words/s", lambda line: line.median("words_per_second", 0)),
        Column("sentences", _sentences),
        SEEDS,
    ]
    return table_of(list(lines_by_mode(records)), columns, caption or text)


def _translation_score(score: str, part: str = "") -> Column:
    """A column of a score in the domain of training, or in the other one."""
    if part:
        return Column(f"{score}, other domain", lambda line: line.cell(part, score))
    return Column(
        score,
        lambda line: line.cell(_part(line), score),
        lambda line: line.values(_part(line), score),
    )


def _correlation(name: str) -> Column:
    measure = f"chrF~{name} Spearman"
    return Column(f"chrF ~ {name}", lambda line: line.cell(_part(line), measure, percent=False))


def _sentences(line: Line) -> str:
    return f"{line.group[0].results['measures'][_part(line)][line.mode]['sentences']:.0f}"


def _part(line: Line) -> str:
    """The part that the scores of a line are of."""
    measures: dict[str, Any] = next((r.results["measures"] for r in line.group if r.results), {})
    return next((part for part in PARTS if part in measures), PARTS[0])


KIND = re.compile(r"accuracy \((.+)\)")

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
    columns = [_measured(KIND.sub(r"\1", name), CLEAN_AND_NOISY, name) for name in kinds]
    columns.append(_measured(KIND.sub(r"\1", CONSTANT), CLEAN_AND_NOISY[:1], CONSTANT))
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
    columns = [_measured(f"{v:g}", (parts[v],), *LEVELS) for v in sorted(parts)]
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


def _measured(name: str, parts: Sequence[str], *measures: str) -> Column:
    """A column with every measure of every part."""
    return Column(name, lambda line: line.cells(itertools.product(parts, measures)))


def _table(records: Sequence[Record], columns: Sequence[Column], caption: str) -> Table:
    """A row for each cell and mode that has any of the values."""
    lines = [
        line
        for line in lines_by_mode(records)
        if any(column.cell(line) != NONE for column in columns)
    ]
    return table_of(lines, [ATTENTION, PREDICTION, *columns], caption)
