"""Results in another domain, each method with its best setting for the training domain.

Of the settings of a method, the tables show the one with the lowest NLL on development data of the
training domain, predicted in the same way. Nothing is chosen by results in the other domain.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from babn.evaluation.tables import Table
from babn_paper.experiments.records import Record
from babn_paper.experiments.result_tables import NONE, by_label, mean_and_deviation, tried


@dataclass(frozen=True)
class Line:
    """A kind of prediction.

    Attributes:
        name: Its name in the table.
        method: The attention method of its models.
        mode: Posterior mean, samples or dropout.
        tempered: Whether a temperature of the training domain is applied.
    """

    name: str
    method: str
    mode: str
    tempered: bool = False

    def values(self, runs: Sequence[Record], part: str, measure: str) -> list[float]:
        """A measure of each run."""
        suffix = " + TS (in domain)" if self.tempered else ""
        return [record.of(part, self.mode)[measure + suffix] for record in runs]

    def suits(self, runs: Sequence[Record]) -> float:
        """NLL on the development data, where temperatures are cross-fitted."""
        name = "NLL + TS" if self.tempered else "NLL"
        return statistics.fmean(record.of("dev", self.mode)[name] for record in runs)


LINES = (
    Line("softmax", "softmax", "mean"),
    Line("softmax + TS", "softmax", "mean", tempered=True),
    Line("softmax, MC dropout", "softmax", "dropout"),
    Line("softmax, MC dropout + TS", "softmax", "dropout", tempered=True),
    Line("ensemble", "ensemble", "sampled"),
    Line("ensemble + TS", "ensemble", "sampled", tempered=True),
    Line("BAM", "bam", "sampled"),
    Line("BAM, sampled + dropout", "bam", "dropout"),
    Line("BABN", "belief", "sampled"),
    Line("BABN + TS", "belief", "sampled", tempered=True),
    Line("BABN, sampled + dropout", "belief", "dropout"),
    Line("BABN, sampled + dropout + TS", "belief", "dropout", tempered=True),
)
COLUMNS = (
    ("NLL", "test", "NLL", False),
    ("NLL, out", "out", "NLL", False),
    ("ECE", "test", "ECE-10", True),
    ("ECE, out", "out", "ECE-10", True),
)

LIKELIHOOD, _, _, CALIBRATION = COLUMNS
CALIBRATED = ("softmax + TS", "softmax, MC dropout", "BABN", "BABN + TS", "BABN, sampled + dropout")
LIKELY = ("softmax + TS", "ensemble", "ensemble + TS", "BABN", "BABN + TS")
"""Lines of the two short tables."""


def side_by_side(
    results: Mapping[str, Sequence[Record]],
    column: tuple[str, str, str, bool],
    names: Sequence[str],
) -> Table:
    """A measure of several lines, one row for each model and task; the best of a row is bold."""
    title, part, measure, percent = column
    lines = [line for line in LINES if line.name in names]
    rows, bold = [], []
    for model, records in results.items():
        for own in by_task(records):
            values = [line.values(chosen(own, line), part, measure) for line in lines]
            means = [statistics.fmean(each) for each in values]
            bold.append((len(rows), 1 + means.index(min(means))))
            cells = [mean_and_deviation(each, percent) for each in values]
            rows.append([f"{model}, {own[0].title}", *cells])
    return Table([title, *(line.name for line in lines)], rows, best=frozenset(bold))


def domain_tables(records: Sequence[Record]) -> list[Table]:
    """A table per task with a row for each kind of prediction; the best of a column is bold."""
    return [task_table(own) for own in by_task(records)]


def by_task(records: Sequence[Record]) -> list[list[Record]]:
    """The runs of each task that have results."""
    done = [record for record in records if record.results]
    tasks = dict.fromkeys(record.experiment["task"] for record in done)
    return [[r for r in done if r.experiment["task"] == task] for task in tasks]


def task_table(records: Sequence[Record]) -> Table:
    """The table of a task."""
    best = {line: runs for line in LINES if (runs := chosen(records, line))}
    bold = []
    for place, (_, part, measure, _) in enumerate(COLUMNS, 1):
        means = [statistics.fmean(line.values(runs, part, measure)) for line, runs in best.items()]
        bold.append((means.index(min(means)), place))
    head = [records[0].title, *(name for name, *_ in COLUMNS), "setting"]
    return Table(head, [row(line, runs) for line, runs in best.items()], best=frozenset(bold))


def chosen(records: Sequence[Record], line: Line) -> list[Record]:
    """The runs of a line with its best setting; none if there is no such prediction."""
    own = [r for r in records if r.experiment["method"] == line.method and r.of("dev", line.mode)]
    return min(by_label(own).values(), key=line.suits, default=[])


def row(line: Line, runs: Sequence[Record]) -> list[str]:
    """The cells of a line."""
    cells = [
        mean_and_deviation(line.values(runs, part, measure), percent)
        for _, part, measure, percent in COLUMNS
    ]
    return [line.name, *cells, in_words(tried(runs[0].label).removeprefix(", "))]


def in_words(setting: str) -> str:
    """A setting in a few words."""
    shorter = setting.replace("label_smoothing=0.1", "label smoothing")
    return shorter.replace("settings.", "").replace("=", " ") or NONE
