"""A run's results as a table in the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn_paper.experiments.experiment import Experiment
from babn_paper.tasks.vqa_metrics import is_of_type, type_accuracy, type_count, type_rows


def show(console: Console, results: dict[str, Any], experiment: Experiment) -> None:
    """Every measure of every part, one column for each way of asking."""
    for part, modes in results["measures"].items():
        console.print(f"\n{experiment.task}, {part}", markup=False)
        console.print(_table(modes, results["scores"], experiment.paper))
        if types := type_rows(next(iter(modes.values()), {})):
            console.print("", _types_table(modes, types), sep="\n")
    seconds = results["seconds_per_step"]
    console.print(
        f"{results['parameters']:,} parameters, {results['steps']} steps"
        + (f" of {seconds:.3g} s" if seconds else ""),
        style="dim",
    )


def _types_table(modes: dict[str, dict[str, float]], types: dict[str, list[str]]) -> Table:
    """Accuracy by type of question, of which `results.json` has all."""
    made = _empty("accuracy by question type", ["questions", *modes])
    for row, names in types.items():
        count = type_count(next(iter(modes.values())), names)
        found = [type_accuracy(measures, names) for measures in modes.values()]
        made.add_row(row, str(count), *("" if v is None else f"{v:.4f}" for v in found))
    return made


def _empty(head: str, columns: Iterable[str]) -> Table:
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column(head, no_wrap=True)
    for column in columns:
        made.add_column(column, justify="right")
    return made


def _table(modes: dict[str, dict[str, float]], scores: list[str], paper: Any) -> Table:
    made = _empty("measure", [*modes, "paper"] if paper else modes)
    found = dict.fromkeys(name for values in modes.values() for name in values)
    names = [name for name in found if not is_of_type(name)]
    for name in sorted(names, key=lambda name: name not in scores):
        cells = [f"{v[name]:.4f}" if name in v else "" for v in modes.values()]
        made.add_row(name, *cells, *([paper.get(name, "")] if paper else []))
    return made
