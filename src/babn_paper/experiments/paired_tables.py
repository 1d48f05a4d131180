"""Tables of models that were tested twice: in two domains, or on clean and noisy images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from babn.evaluation.tables import Table
from babn_paper.experiments.naming import mode_name, rule_name
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import (
    NONE,
    NOT_RUN,
    average,
    by_label,
    mean_and_deviation,
    tried,
    with_papers_numbers,
)


@dataclass(frozen=True)
class Pair:
    """A column with a measure of both parts.

    Attributes:
        name: Its head.
        measure: What the runs call it.
        last: Whether it is shown of the second part only.
        percent: Whether to show hundredths.
        lower_is_better: Whether the smallest number is the best.
        paper: What a configuration's paper numbers call it, if it has a column there.
        sampled: Whether the paper's numbers are of samples, and not of point estimates.
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
    """What a table shows.

    Attributes:
        parts: The two parts of the data.
        columns: The measures.
        explanation: What the cells mean.
        sources: Where the paper's numbers come from, if that has to be known.
    """

    parts: tuple[str, str]
    columns: tuple[Pair, ...]
    explanation: str
    sources: str = ""


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
    """The layout whose parts the runs were tested on."""
    parts = {part for record in records for part in record.results.get("measures", {})}
    return next((each for each in LAYOUTS if each.parts[1] in parts), None)


@dataclass(frozen=True)
class _Line:
    group: list[Record]
    label: str
    mode: str
    layout: Layout

    def values(self, part: str, column: Pair) -> list[float]:
        found = [record.measure(part, self.mode, column.measure) for record in self.group]
        return [value for value in found if value is not None]

    def paper(self, column: Pair) -> str:
        """The paper's numbers, if they are of models that were asked in this way."""
        if column.sampled == (self.mode == "mean"):
            return NONE
        printed = self.group[0].experiment["paper"]
        found = [printed.get(f"{column.paper} ({part})", NONE) for part in self.layout.parts]
        return NONE if found == [NONE, NONE] else " / ".join(found)

    def cell(self, column: Pair) -> str:
        """What the runs have of a measure, for each part."""
        parts = self.layout.parts[column.last :]
        shown = [mean_and_deviation(self.values(part, column), column.percent) for part in parts]
        return " / ".join(shown) if {*shown} != {NONE} else NONE


def paired_table(records: Sequence[Record], layout: Layout, caption: str = "") -> Table:
    """One row for each cell and way to ask; numbers of both parts, and the paper's if any."""
    lines = list(_lines(records, layout))
    head = ["task", "model", "attention", "asked"]
    for column in layout.columns:
        head += [f"{column.name}, paper", column.name] if column.paper else [column.name]
    head.append("seeds")
    best = frozenset(_best(lines, head))
    printed = any(line.group[0].experiment["paper"] for line in lines)
    text = caption or f"{layout.explanation} {layout.sources if printed else ''}".strip()
    return with_papers_numbers(Table(head, [_row(line) for line in lines], text, best))


def _lines(records: Sequence[Record], layout: Layout) -> Iterator[_Line]:
    for label, group in by_label(records).items():
        found = dict.fromkeys(mode for record in group for mode in record.measures)
        yield from (_Line(group, label, mode, layout) for mode in found or ["mean"])


def _row(line: _Line) -> list[str]:
    first = line.group[0]
    rule = first.experiment["rule"]
    done = sum(bool(record.results) for record in line.group)
    cells: list[str] = []
    for column in line.layout.columns:
        cells += [line.paper(column)] if column.paper else []
        cells.append(line.cell(column) if done else NOT_RUN)
    return [
        first.title,
        Path(first.experiment["model"]).name,
        f"{rule_name(rule)}{tried(line.label.removesuffix(f'-{rule}'))}",
        mode_name(rule, line.mode),
        *cells,
        str(first.results.get("members", done)),
    ]


def _best(lines: list[_Line], head: list[str]) -> Iterator[tuple[int, int]]:
    """Places of the lines that are best on the second part, among those of a task and model."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, line in enumerate(lines):
        experiment = line.group[0].experiment
        groups.setdefault((experiment["task"], experiment["model"]), []).append(row)
    for rows in groups.values():
        layout = lines[rows[0]].layout
        for column in layout.columns:
            found = {
                row: mean
                for row in rows
                if (mean := average(lines[row].values(layout.parts[1], column))) is not None
            }
            choose: Callable[..., float] = min if column.lower_is_better else max
            if len(found) > 1:
                best = choose(found.values())
                yield from ((r, head.index(column.name)) for r, v in found.items() if v == best)
