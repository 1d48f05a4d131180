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


def table(results: dict[str, Any]) -> str:
    """Means over tasks of means over seeds, as Markdown."""
    runs, tasks = results["runs"], _tasks(results["runs"])
    seeds = len({run["seed"] for run in runs})
    heads = [heading for heading, _, _ in COLUMNS.values()]
    lines = ["| mean over " + ", ".join(tasks) + " | " + " | ".join(heads) + " |"]
    lines.append("|---|" + "---:|" * len(heads))

    def mean(method: str, name: str) -> float:
        each = [[r["methods"][method][name] for r in runs if r["task"] == task] for task in tasks]
        return statistics.mean(statistics.mean(values) for values in each)

    def row(title: str, value: Any) -> str:
        cells = [f"{value(n) * factor:.{digits}f}" for n, (_, factor, digits) in COLUMNS.items()]
        return f"| {title} | " + " | ".join(cells) + " |"

    for method in runs[0]["methods"]:
        lines.append(row(method, lambda name, method=method: mean(method, name)))
    together = results["ensembles"]
    title = f"ensemble of the {seeds} deterministic models"
    lines.append(row(title, lambda name: statistics.mean(together[t][name] for t in tasks)))
    return "\n".join(lines)


def wins(all_results: list[dict[str, Any]]) -> str:
    """In how many cells of model and task BABN has a lower NLL and ECE than others, as Markdown."""
    lines = [
        "| cells with a lower NLL / ECE than | deterministic | MC dropout |",
        "|---|---:|---:|",
    ]
    for method in ("BABN, not trained", "BABN, trained"):
        cells = []
        for rival in ("deterministic", "MC dropout"):
            won = {"nll": 0, "ece": 0}
            total = 0
            for results in all_results:
                for task in _tasks(results["runs"]):
                    total += 1
                    runs = [r["methods"] for r in results["runs"] if r["task"] == task]
                    for name in won:
                        gap = statistics.mean(r[method][name] - r[rival][name] for r in runs)
                        won[name] += gap < 0
            cells.append(f"{won['nll']} / {won['ece']} of {total}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
            seeds = len({run["seed"] for run in results["runs"]})
            print(f"{results['model']}, {seeds} seeds\n\n{table(results)}\n")
        print(wins(shown))
        return
    results = collect(args.runs)
    args.out.write_text(json.dumps(results, indent=None, separators=(",", ":")) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
