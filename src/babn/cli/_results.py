"""A run's results as a table in the terminal."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn.experiments.experiment import Experiment


def show(console: Console, results: dict[str, Any], experiment: Experiment) -> None:
    """Every measure of every part, one column for each way of asking."""
    for part, modes in results["measures"].items():
        console.print(f"\n{experiment.task}, {part}", markup=False)
        console.print(_table(modes, results["scores"], experiment.paper))
    seconds = results["seconds_per_step"]
    console.print(
        f"{results['parameters']:,} parameters, {results['steps']} steps"
        + (f" of {seconds:.3g} s" if seconds else ""),
        style="dim",
    )


def _table(modes: dict[str, dict[str, float]], scores: list[str], paper: Any) -> Table:
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column("measure", no_wrap=True)
    for mode in modes:
        made.add_column(mode, justify="right")
    if paper:
        made.add_column("paper", justify="right")
    names = list(dict.fromkeys(name for values in modes.values() for name in values))
    for name in sorted(names, key=lambda name: name not in scores):
        cells = [f"{v[name]:.4f}" if name in v else "" for v in modes.values()]
        made.add_row(name, *cells, *([paper.get(name, "")] if paper else []))
    return made
