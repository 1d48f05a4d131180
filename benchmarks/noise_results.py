"""Collects the runs of `noise_table.py` or `noise_ablation.py`, and prints their table.

python benchmarks/noise_results.py RUNS.json... --out benchmarks/results/noise-minilm.json
python benchmarks/noise_results.py --show benchmarks/results/noise-*.json
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from noise_table import measures, tempered

from babn.evaluation.tables import Table

COLUMNS = {
    "accuracy": ("accuracy", 100, 1),
    "nll": ("NLL", 1, 3),
    "ece": ("ECE", 100, 1),
    "error_entropy": ("errors by H", 100, 1),
    "error_mi": ("errors by MI", 100, 1),
    "foreign_entropy": ("foreign by H", 100, 1),
    "foreign_mi": ("foreign by MI", 100, 1),
}
"""Measure, heading, factor and digits."""

OURS = ("BABN + TS, not trained", "BABN + TS, trained")
RIVALS = ("deterministic", "MC dropout", "deterministic + TS", "MC dropout + TS")


def collect(paths: list[Path]) -> dict[str, Any]:
    """Measures of every run, and those of ensembles where the runs have logits."""
    runs = [run for path in paths for run in _runs(json.loads(path.read_text()))]
    first = runs[0]
    kept = ("task", "seed", "seconds", "methods", "content")
    return {
        **{name: first[name] for name in ("model", "settings", "versions", "machine")},
        "runs": [{name: _rounded(run[name]) for name in kept if name in run} for run in runs],
        "ensembles": _rounded(
            {
                task: ensembles([run for run in runs if run["task"] == task])
                for task in _tasks(runs)
                if "logits" in first
            }
        ),
    }


def _runs(found: Any) -> list[dict[str, Any]]:
    return found if isinstance(found, list) else [found]


def _tasks(runs: list[dict[str, Any]]) -> list[str]:
    return sorted({run["task"] for run in runs})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return None if value != value else round(value, 4)
    return value


def ensembles(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The deterministic models of all seeds as one, without and with temperature scaling."""
    logits = {
        name: torch.stack([torch.tensor(run["logits"][name]) for run in runs])
        for name in ("tune", "test", "foreign")
    }
    truth = {name: torch.tensor(values) for name, values in runs[0]["labels"].items()}
    name = f"ensemble of {len(runs)}"
    return {name: measures(logits, truth), f"{name} + TS": tempered(logits, truth)}


def seeds(results: dict[str, Any]) -> int:
    """How many seeds were trained."""
    return len({run["seed"] for run in results["runs"]})


def methods(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Measures of every method: means over tasks of means over seeds."""
    runs, tasks = results["runs"], _tasks(results["runs"])
    single = {
        method: _means(
            [
                _means([run["methods"][method] for run in runs if run["task"] == task])
                for task in tasks
            ]
        )
        for method in runs[0]["methods"]
    }
    together = results["ensembles"]
    names = next(iter(together.values()), {})
    return single | {name: _means([together[task][name] for task in tasks]) for name in names}


def _means(each: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(values[name] for values in each) for name in COLUMNS}


def cells(values: dict[str, float]) -> list[str]:
    """Measures as a table shows them."""
    return [f"{values[name] * factor:.{digits}f}" for name, (_, factor, digits) in COLUMNS.items()]


def table(results: dict[str, Any]) -> str:
    """All measures of all methods, as Markdown."""
    heads = [heading for heading, _, _ in COLUMNS.values()]
    title = "mean over " + ", ".join(_tasks(results["runs"]))
    rows = [[name, *cells(values)] for name, values in methods(results).items()]
    return Table([title, *heads], rows).markdown().strip()


def wins(all_results: list[dict[str, Any]]) -> str:
    """In how many cells of model and task BABN has a lower NLL and ECE than others, as Markdown."""
    rows = [[ours, *(_won(all_results, ours, rival) for rival in RIVALS)] for ours in OURS]
    return Table(["cells with a lower NLL / ECE than", *RIVALS], rows).markdown().strip()


def _won(all_results: list[dict[str, Any]], method: str, rival: str) -> str:
    cells = [
        [run["methods"] for run in results["runs"] if run["task"] == task]
        for results in all_results
        for task in _tasks(results["runs"])
    ]
    won = {
        name: sum(
            statistics.mean(r[method][name] - r[rival][name] for r in runs) < 0 for runs in cells
        )
        for name in ("nll", "ece")
    }
    return f"{won['nll']} / {won['ece']} of {len(cells)}"


def training_time(results: dict[str, Any]) -> float:
    """Time of training with BABN divided by that with softmax, median over runs."""
    return statistics.median(
        run["seconds"]["BABN"] / run["seconds"]["softmax"] for run in results["runs"]
    )


def shown(all_results: list[dict[str, Any]]) -> str:
    """The tables of several files."""
    parts = [f"{each['model']}, {seeds(each)} seeds\n\n{table(each)}" for each in all_results]
    if all(each["ensembles"] for each in all_results):
        parts.append(wins(all_results))
    return "\n\n".join(parts)


Results = dict[str, Any]


def main(
    collect: Callable[[list[Path]], Results], shown: Callable[[list[Results]], str], about: str
) -> None:
    """The command line: collects runs into a file, or shows files."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+")
    args = parser.parse_args()
    if args.show is not None:
        print(shown([json.loads(path.read_text()) for path in args.show]))
        return
    results = collect(args.runs)
    args.out.write_text(json.dumps(results, indent=None, separators=(",", ":")) + "\n")
    print(shown([results]))


if __name__ == "__main__":
    main(collect, shown, __doc__)
