"""Chooses settings of each attention method from searches on development data.

python paper/choose_settings.py paper/results/minilm-search.json ... [GRID.toml ...]

Several searches count as one. With grids, the chosen settings are written into their methods.

The criterion was fixed before the first search was run: the score at the posterior mean, averaged
over tasks and seeds; among settings within a fifth of a point of the best, the one with the
smallest NLL in the method's fullest mode (sampled, or the mean for softmax), averaged likewise over
the tasks that have one.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from result_files import load_records

from babn.evaluation.tables import Table
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.naming import attention_name, flat
from babn_paper.experiments.records import Record
from babn_paper.tasks.catalogue import find_task

NEAR = 0.002
ASIDE = {"seed", "graphs", "settings"}
"""Fields that are not settings of a method."""
DEFAULTS = {field.name: field.default for field in fields(Experiment)}


@dataclass(frozen=True)
class Tried:
    """Results of one setting of a method.

    Attributes:
        setting: Fields that were searched over, by name.
        scores: Mean score of each task.
        nll: Mean NLL over tasks.
        runs: Number of runs.
    """

    setting: dict[str, Any]
    scores: dict[str, float]
    nll: float
    runs: int

    @property
    def score(self) -> float:
        """Mean over tasks."""
        return statistics.fmean(self.scores.values())

    def lines(self) -> list[str]:
        """The setting as lines of a grid."""
        return [f"{name} = {json.dumps(value)}" for name, value in self.setting.items()]


def main() -> None:
    """Prints all settings and writes the chosen one of each method into grids."""
    files = [Path(name) for name in sys.argv[1:]]
    records = [r for file in files if file.suffix == ".json" for r in load_records(file)[0]]
    methods = []
    for method, settings in tried(records).items():
        best = chosen(settings)
        print(f"\n{method}: {len(settings)} settings")
        for each in settings:
            mark = "  <- chosen" if each is best else ""
            name = ", ".join(each.lines()) or "defaults"
            print(f"  {100 * each.score:6.2f}  NLL {each.nll:.3f}  {name}{mark}")
        methods.append("\n".join([f"[methods.{method}]", *best.lines()]) + "\n")
    for file in (file for file in files if file.suffix == ".toml"):
        head = file.read_text(encoding="utf-8").partition("[methods.")[0]
        file.write_text(head + "\n".join(methods), encoding="utf-8")


def tried(records: Sequence[Record]) -> dict[str, list[Tried]]:
    """The settings of each method, the best score first."""
    by_method: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.results and record.experiment["method"] != "ensemble":
            by_method[record.experiment["method"]].append(record)
    return {
        method: sorted(
            (_of_runs(*group) for group in _by_setting(runs)), key=lambda each: -each.score
        )
        for method, runs in by_method.items()
    }


def chosen(settings: Sequence[Tried]) -> Tried:
    """Sort key: the score, then the NLL among similar scores."""
    best = max(each.score for each in settings)
    near = [each for each in settings if each.score >= best - NEAR]
    return min(near, key=lambda each: each.nll)


def search_table(records: Sequence[Record]) -> Table:
    """A table of the settings, with the chosen one of each method in bold."""
    tasks = list(dict.fromkeys(record.experiment["task"] for record in records))
    rows, best = [], set()
    for method, settings in tried(records).items():
        for each in settings:
            if each is chosen(settings):
                best |= {(len(rows), column) for column in range(1, 4)}
            own = [f"{100 * score:.1f}" for score in map(each.scores.__getitem__, tasks)]
            name = ", ".join(line.replace(" = ", "=") for line in each.lines())
            numbers = [f"{100 * each.score:.2f}", f"{each.nll:.3f}"]
            rows.append([attention_name(method), name, *numbers, *own, str(each.runs)])
    titles = [find_task(task).title for task in tasks]
    columns = ["attention", "settings", "score", "NLL", *titles, "runs"]
    return Table(columns, rows, best=frozenset(best))


def _by_setting(runs: Sequence[Record]) -> list[tuple[dict[str, Any], list[Record]]]:
    """Runs by the searched fields, which are those that differ among runs of a task."""
    tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        tasks[run.experiment["task"]].append(_fields(run))
    searched = {
        name
        for own in tasks.values()
        for name in set().union(*own) - ASIDE
        if len({repr(each.get(name)) for each in own}) > 1
    }
    groups: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    for run in runs:
        setting = {name: value for name, value in _fields(run).items() if name in searched}
        groups.setdefault(repr(setting), (setting, []))[1].append(run)
    return list(groups.values())


def _fields(run: Record) -> dict[str, Any]:
    """Fields of a run; fields that its file lacks have their defaults."""
    return {**DEFAULTS, **flat(run.experiment)}


def _of_runs(setting: dict[str, Any], runs: Sequence[Record]) -> Tried:
    scores: dict[str, list[float]] = defaultdict(list)
    surprises: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        task = run.experiment["task"]
        measures = run.results["measures"]["dev"]  # whatever else it was tested on
        scores[task].append(measures["mean"][find_task(task).scores[-1]])
        fullest = measures["sampled" if "sampled" in measures else "mean"]
        if "NLL" in fullest:
            surprises[task].append(fullest["NLL"])
    means = {task: statistics.fmean(values) for task, values in scores.items()}
    nll = statistics.fmean(statistics.fmean(values) for values in surprises.values())
    return Tried(setting, means, nll, len(runs))


if __name__ == "__main__":
    main()
