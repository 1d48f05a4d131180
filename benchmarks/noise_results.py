"""Collects the runs of `noise_table.py` into one small file, and prints their table.

python benchmarks/noise_results.py RUNS.json... --out benchmarks/results/noise-minilm.json
python benchmarks/noise_results.py --show benchmarks/results/noise-*.json
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from noise_table import measures

from babn.evaluation.tables import Table

COLUMNS = {
    "accuracy": ("accuracy", 100, 1),
    "nll": ("NLL", 1, 3),
    "ece": ("ECE", 100, 1),
    "nll_ts": ("NLL + TS", 1, 3),
    "ece_ts": ("ECE + TS", 100, 1),
    "error_entropy": ("errors by entropy", 100, 1),
    "error_mi": ("errors by MI", 100, 1),
    "foreign_entropy": ("foreign by entropy", 100, 1),
}
"""Measure, heading, factor and digits."""


def collect(paths: list[Path]) -> dict[str, Any]:
    """Measures of every run without its logits, which only the ensembles need."""
    runs = [run for path in paths for run in _runs(json.loads(path.read_text()))]
    first = runs[0]
    return {
        "model": first["model"],
        "settings": first["settings"],
        "versions": first["versions"],
        "machine": first["machine"],
        "runs": [
            {
                "task": run["task"],
                "seed": run["seed"],
                "seconds": _rounded(run["seconds"]),
                "methods": _rounded(run["methods"]),
                "content": _rounded(run["content"]),
            }
            for run in runs
        ],
        "ensembles": _rounded(
            {task: ensemble([r for r in runs if r["task"] == task]) for task in _tasks(runs)}
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


def ensemble(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The deterministic models of all seeds as one."""
    logits = {
        name: torch.stack([torch.tensor(run["logits"][name]) for run in runs])
        for name in ("tune", "test", "foreign")
    }
    truth = {name: torch.tensor(values) for name, values in runs[0]["labels"].items()}
    return measures(logits, truth)


def seeds(results: dict[str, Any]) -> int:
    """How many seeds were trained."""
    return len({run["seed"] for run in results["runs"]})


def of_method(results: dict[str, Any], method: str) -> dict[str, float]:
    """Measures of a method: means over tasks of means over seeds."""
    runs = results["runs"]
    by_task = [[r["methods"][method] for r in runs if r["task"] == task] for task in _tasks(runs)]
    return {
        name: statistics.mean(statistics.mean(run[name] for run in own) for own in by_task)
        for name in COLUMNS
    }


def of_ensemble(results: dict[str, Any]) -> dict[str, float]:
    """Measures of the ensembles: means over tasks."""
    together = results["ensembles"].values()
    return {name: statistics.mean(each[name] for each in together) for name in COLUMNS}


def cells(values: dict[str, float]) -> list[str]:
    """Measures as a table shows them."""
    return [f"{values[name] * factor:.{digits}f}" for name, (_, factor, digits) in COLUMNS.items()]


def table(results: dict[str, Any]) -> str:
    """All measures of all methods, as Markdown."""
    heads = [heading for heading, _, _ in COLUMNS.values()]
    title = "mean over " + ", ".join(_tasks(results["runs"]))
    rows = [[each, *cells(of_method(results, each))] for each in results["runs"][0]["methods"]]
    name = f"ensemble of the {seeds(results)} deterministic models"
    rows.append([name, *cells(of_ensemble(results))])
    return Table([title, *heads], rows).markdown().strip()


def wins(all_results: list[dict[str, Any]]) -> str:
    """In how many cells of model and task BABN has a lower NLL and ECE than others, as Markdown."""
    rivals = ("deterministic", "MC dropout")
    rows = [
        [method, *(_won(all_results, method, rival) for rival in rivals)]
        for method in ("BABN, not trained", "BABN, trained")
    ]
    return Table(["cells with a lower NLL / ECE than", *rivals], rows).markdown().strip()


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+")
    args = parser.parse_args()
    if args.show is not None:
        shown = [json.loads(path.read_text()) for path in args.show]
        for results in shown:
            print(f"{results['model']}, {seeds(results)} seeds\n\n{table(results)}\n")
        print(wins(shown))
        return
    results = collect(args.runs)
    args.out.write_text(json.dumps(results, indent=None, separators=(",", ":")) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
