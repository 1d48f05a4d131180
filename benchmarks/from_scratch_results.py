"""Collects the results of `choosing_images.py` or `choosing_lm.py`, and prints their tables.

python benchmarks/from_scratch_results.py FOLDER --out benchmarks/results/choosing-cifar10.json
python benchmarks/from_scratch_results.py --show benchmarks/results/choosing-*.json
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noise_results import main

from babn.evaluation.tables import Table
from babn.methods.catalogue import GROUPS
from babn.methods.run import load
from babn.methods.scores import BINS, Scores
from babn.metrics.calibration_error import bin_index, cell_sums, largest_gap

COLUMNS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "cifar10": {
        **{name: ("test", name) for name in ("accuracy", "NLL", "ECE", "MCE", "error AUROC")},
        **{f"corrupted {name}": ("corrupted", name) for name in ("accuracy", "NLL", "ECE")},
        **{f"MNIST {name}": ("test", f"outside {name}") for name in ("AUROC", "FPR95")},
    },
    "lm_text": {
        **{name: ("test", name) for name in ("accuracy", "NLL", "ECE", "error AUROC")},
        **{f"talks {name}": ("shift", name) for name in ("NLL", "ECE")},
        **{
            f"{part} by {name}": (part, f"AUROC by {name}")
            for part in ("shuffled", "German")
            for name in ("NLL", "entropy", "MI")
        },
    },
}
"""Headings by task, with the test sets (by the start of their names) and the measure averaged."""

PUBLISHED = {
    "maximum likelihood": (0.715, 0.837, 0.065),
    "maximum likelihood + TS": (0.715, 0.814, 0.062),
    "MC dropout": (0.713, 0.819, 0.064),
    "SNGP": (0.727, 0.807, 0.063),
    "sparse GP attention": (0.665, 0.948, 0.025),
    "random-feature GP attention": (0.759, 0.713, 0.046),
}
"""Accuracy, NLL and ECE on CIFAR-10 in the paper on random-feature Gaussian-process attention."""

Results = dict[str, Any]
Records = dict[str, list[dict[str, Any]]]
"""The records of each method, one for each seed."""


def collect(folders: list[Path]) -> Results:
    """The records of all methods and seeds, with the maximum calibration error."""
    records = []
    for path in sorted(path for folder in folders for path in folder.glob("*-[0-9]*.json")):
        result = load(path)
        record = result.record()
        for part, scores in result.scores.items():
            record["measures"][part]["MCE"] = mce(scores)
        records.append(_rounded(record))
    return {**json.loads((folders[0] / "about.json").read_text()), "results": records}


def mce(scores: Scores) -> float:
    """The maximum calibration error."""
    cells = bin_index(scores.confidence, BINS)
    return float(largest_gap(cell_sums(cells, scores.confidence, scores.correct, BINS)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def shown(all_results: list[Results]) -> str:
    """The tables of collected results, as Markdown."""
    return "\n\n".join(table(results) for results in all_results)


def table(results: Results) -> str:
    """Every method's measures, means over seeds with standard deviations, and published ones."""
    columns = COLUMNS[results["task"]]
    rows = [
        [method, *(_spread(records, *column) for column in columns.values())]
        for method, records in by_method(results).items()
    ]
    if results["task"] == "cifar10":
        for method, values in PUBLISHED.items():
            cells = [f"{value:.3f}" for value in values]
            rows.append([f"{method} (published)", *cells, *["-"] * (len(columns) - len(cells))])
    return Table(["method", *columns], rows).markdown().strip()


def by_method(results: Results) -> Records:
    """The records of each method, in the order of the catalogue."""
    found: Records = {m.name: [] for methods in GROUPS.values() for m in methods}
    for record in results["results"]:
        found[record["method"]].append(record)
    return {method: records for method, records in found.items() if records}


def _spread(records: list[dict[str, Any]], start: str, name: str) -> str:
    """Mean and standard deviation over seeds of a measure's mean over test sets."""
    each = [
        statistics.fmean(m[name] for part, m in parts.items() if part.startswith(start))
        for parts in (record["measures"] for record in records)
        if all(name in m for part, m in parts.items() if part.startswith(start))
    ]
    if not each:
        return "-"
    return f"{statistics.fmean(each):.3f}" + (
        f" ± {statistics.stdev(each):.3f}" if len(each) > 1 else ""
    )


if __name__ == "__main__":
    main(collect, shown, __doc__ or "")
