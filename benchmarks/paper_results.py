"""Collects the runs of `paper_as_written.py` into one small file, and prints their tables.

Runs with different `--tokens` in one file are shown by length.

python benchmarks/paper_results.py RUNS.json... --out benchmarks/results/paper-minilm.json
python benchmarks/paper_results.py --show benchmarks/results/paper-*.json
"""

import json
import statistics
from pathlib import Path
from typing import Any

from noise_results import _rounded, _runs, _tasks, main, seeds
from paper_as_written import MAIN, METHODS

from babn.evaluation.tables import Table

MISSING = "-"
TITLES = {"paper": "**paper** (as published)", "default": "**default** (ours)"}


def collect(paths: list[Path]) -> dict[str, Any]:
    """Measures of every run, without the points of its curve between first and last."""
    runs = [run for path in paths for run in _runs(json.loads(path.read_text()))]
    first = runs[0]
    shared = {name: first[name] for name in ("model", "settings", "versions", "machine")}
    return shared | {
        "runs": [
            {
                "task": run["task"],
                "seed": run["seed"],
                "tokens": run["settings"]["tokens"],
                "length": round(run.get("length", 0.0), 1),
                "methods": _shortened(run["methods"]),
            }
            for run in runs
        ]
    }


def _shortened(methods: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded({**each, "curve": [each["curve"][0], each["curve"][-1]]})
        for name, each in methods.items()
    }


def _seeds(results: dict[str, Any]) -> str:
    count = seeds(results)
    return f"{count} seed{'s' if count > 1 else ''}"


def of(results: dict[str, Any], method: str, task: str, part: str) -> list[dict[str, Any]]:
    """The measures of a method on a task, one for each seed."""
    found = [r["methods"].get(method) for r in results["runs"] if r["task"] == task]
    return [each[part] for each in found if each and part in each]


def mean(found: list[dict[str, Any]], name: str, factor: float, digits: int) -> str:
    """Mean over seeds; a dash if there is no run, or none that stayed finite."""
    values = [each[name] for each in found if each.get(name) is not None]
    return f"{factor * statistics.mean(values):.{digits}f}" if values else MISSING


def accuracies(results: dict[str, Any], part: str = "mean") -> str:
    """Accuracy of every method on every task; of STS-B Pearson's correlation, as Markdown."""
    tasks = _tasks(results["runs"])
    rows = [
        [TITLES.get(name, name), *(_cell(of(results, name, task, part)) for task in tasks)]
        for name in _methods(results)
    ]
    return Table(["method", *tasks], rows).markdown().strip()


def _cell(found: list[dict[str, Any]]) -> str:
    """Accuracy, NLL and ECE, with the number of seeds that collapsed."""
    if not found:
        return MISSING
    parts = [mean(found, "accuracy", 100, 1), mean(found, "nll", 1, 3), mean(found, "ece", 100, 1)]
    collapsed = sum(bool(each["collapsed"]) for each in found)
    lost = f" ({collapsed} of {len(found)} collapsed)" if collapsed else ""
    return " / ".join(parts) + lost


def _methods(results: dict[str, Any]) -> list[str]:
    """The methods that ran, and the main ones in any case."""
    ran = _ran(results)
    return [name for name in METHODS if name in ran or name in MAIN]


def _ran(results: dict[str, Any]) -> list[str]:
    ran = {name for run in results["runs"] for name in run["methods"]}
    return [name for name in METHODS if name in ran]


def posteriors(results: dict[str, Any]) -> str:
    """Means over tasks and seeds of what the posteriors became, as Markdown."""
    rows = []
    for name in _methods(results):
        runs = [r["methods"][name] for r in results["runs"] if name in r["methods"]]
        found = [run["posterior"] for run in runs if "posterior" in run]
        if not found:
            continue
        starts = [run["curve"][0][2] for run in runs if run["curve"][0][2] is not None]
        start = f"{statistics.median(starts):.3g}" if starts else MISSING
        ends = [
            f"{statistics.median(each[key] for each in found):.3g}" for key in ("kl", "k_median")
        ]
        collapsed = sum(bool(run["mean"]["collapsed"]) for run in runs)
        floor = mean(found, "floor", 100, 1)
        rows.append([TITLES.get(name, name), start, *ends, floor, f"{collapsed} of {len(runs)}"])
    heads = ["method", "KL at the first step", "KL per variable", "median k", "% k at the floor"]
    return Table([*heads, "runs collapsed"], rows).markdown().strip()


def by_length(results: dict[str, Any]) -> str:
    """Accuracy of every method at every length of the texts, as Markdown."""
    runs = results["runs"]
    cases = sorted({(run["task"], run["tokens"]) for run in runs})
    methods = _ran(results)
    rows = []
    for task, tokens in cases:
        own = [run for run in runs if (run["task"], run["tokens"]) == (task, tokens)]
        mean_length = statistics.mean(run["length"] for run in own)
        found = {"runs": own}
        cells = [_cell(of(found, name, task, "mean")) for name in methods]
        rows.append([task, str(tokens), f"{mean_length:.0f}", *cells])
    heads = [name.removeprefix("paper, KL ") for name in methods]
    return Table(["task", "tokens at most", "on average", *heads], rows).markdown().strip()


def lengths_page(results: dict[str, Any]) -> str:
    """The table of lengths with what it was run with."""
    kept = {name: value for name, value in results["settings"].items() if name != "tokens"}
    settings = ", ".join(f"{name} {value}" for name, value in kept.items())
    ran = f"{results['model']}, {_seeds(results)}, {settings}; {results['machine']}."
    about = "The method as published at several KL weights, posterior mean, accuracy / NLL / ECE:"
    return "\n\n".join([ran, about, by_length(results)])


def page(all_results: list[dict[str, Any]]) -> str:
    """All tables of all models."""
    parts = []
    for results in all_results:
        if len({run.get("tokens") for run in results["runs"]}) > 1:
            parts.append(lengths_page(results))
            continue
        settings = ", ".join(f"{name} {value}" for name, value in results["settings"].items())
        parts += [
            f"### {results['model']}, {_seeds(results)}",
            f"{settings}; {results['machine']}.",
            "Posterior mean, accuracy / NLL / ECE:",
            accuracies(results),
            "Samples, accuracy / NLL / ECE:",
            accuracies(results, "samples"),
            "Posteriors after training, medians over all runs:",
            posteriors(results),
        ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main(collect, page, __doc__)
