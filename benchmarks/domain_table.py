"""What rules come to in another domain, each with the setting that suits its own domain best.

Of the settings that a grid has of a rule, the one with the smallest NLL on the development data of
its own domain is shown: no setting is chosen by what happens in the other one.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from babn.evaluation.tables import Table
from babn.experiments.records import Record
from babn.experiments.result_tables import NONE, by_label, mean_and_deviation, tried

TEMPERED = " + TS (in domain)"
ASKED = {"softmax": "mean", "ensemble": "sampled", "bam": "sampled", "belief": "sampled"}
"""How models are asked where settings are chosen."""


@dataclass(frozen=True)
class Line:
    """A way to answer.

    Attributes:
        name: What the table calls it.
        rule: The rule of its models.
        mode: How they are asked.
        suffix: What is behind the names of its measures.
    """

    name: str
    rule: str
    mode: str
    suffix: str = ""


LINES = (
    Line("softmax", "softmax", "mean"),
    Line("softmax + TS", "softmax", "mean", TEMPERED),
    Line("softmax, MC dropout", "softmax", "dropout"),
    Line("ensemble of 5", "ensemble", "sampled"),
    Line("BAM", "bam", "sampled"),
    Line("BABN", "belief", "sampled"),
    Line("BABN + TS", "belief", "sampled", TEMPERED),
)
COLUMNS = (
    ("NLL", "test", "NLL", False),
    ("NLL, out", "out", "NLL", False),
    ("ECE", "test", "ECE-10", True),
    ("ECE, out", "out", "ECE-10", True),
)


def domain_tables(records: Sequence[Record]) -> list[Table]:
    """A table for each task with a row for each way to answer; the best of a column is bold."""
    best = chosen(records)
    return [
        task_table({rule: runs for (of, rule), runs in best.items() if of == task})
        for task in dict.fromkeys(task for task, _ in best)
    ]


def task_table(best: Mapping[str, Sequence[Record]]) -> Table:
    """The table of a task, from the runs of each rule."""
    lines = [line for line in LINES if line.rule in best]
    bold = []
    for place, (_, part, measure, _) in enumerate(COLUMNS, 1):
        means = [statistics.fmean(values(best[line.rule], line, part, measure)) for line in lines]
        bold.append((means.index(min(means)), place))
    title = next(iter(best.values()))[0].title
    head = [title, *(name for name, *_ in COLUMNS), "setting"]
    return Table(head, [row(best[line.rule], line) for line in lines], best=frozenset(bold))


def chosen(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """The runs of each task and rule that have the best setting."""
    cells: dict[tuple[str, str], list[list[Record]]] = defaultdict(list)
    for group in by_label([record for record in records if record.results]).values():
        cells[group[0].experiment["task"], group[0].experiment["rule"]].append(group)
    return {
        (task, rule): min(groups, key=lambda runs: _mean_nll(runs, ASKED[rule]))
        for (task, rule), groups in cells.items()
    }


def _mean_nll(runs: Sequence[Record], mode: str) -> float:
    return statistics.fmean(record.of("dev", mode)["NLL"] for record in runs)


def values(runs: Sequence[Record], line: Line, part: str, measure: str) -> list[float]:
    """A measure of each run."""
    return [record.of(part, line.mode)[measure + line.suffix] for record in runs]


def row(runs: Sequence[Record], line: Line) -> list[str]:
    """The cells of a line."""
    cells = [
        mean_and_deviation(values(runs, line, part, measure), percent)
        for _, part, measure, percent in COLUMNS
    ]
    return [line.name, *cells, in_words(tried(runs[0].label).removeprefix(", "))]


def in_words(setting: str) -> str:
    """A setting, shorter than its fields are."""
    softer = setting.replace("label_smoothing=0.1", "softer targets")
    return softer.replace("settings.", "").replace("=", " ") or NONE
