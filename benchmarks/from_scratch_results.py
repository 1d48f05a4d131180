"""Tables of the models trained from scratch, from `benchmarks/results/scratch-*.json`.

    python benchmarks/from_scratch_results.py

`choosing_results.py` collects the runs of `choosing_images.py` and `choosing_lm.py` into such
files. Their tables stand beside those of texts, since they have other methods and measures.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import choosing_results as results

from babn.evaluation.tables import Table
from babn_paper.method_comparison.method_catalogue import TS

RESULTS = Path(__file__).parent / "results"

MEASURES = {
    "cifar10": (
        *("accuracy", "NLL", "ECE", "error AUROC"),
        *(f"{results.SHIFTED}{name}" for name in ("accuracy", "NLL", "ECE")),
        *("outside AUROC", "outside FPR95"),
    ),
    "lm_text": (
        "accuracy",
        "NLL",
        "ECE",
        "error AUROC",
        "shift accuracy",
        "shift NLL",
        "shift ECE",
    ),
}
"""Measures of the first table of each task."""

DETAILS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "cifar10": {
        "MCE": ("test", "MCE"),
        **{
            f"{name} at {strength}": (f"corrupted {strength}", name)
            for name in ("accuracy", "ECE")
            for strength in (1, 3, 5)
        },
        "MNIST AUROC by MI": ("test", "outside AUROC by MI"),
    },
    "lm_text": {
        f"{part} by {name}": ("test", f"{part} AUROC by {name}")
        for part in ("shuffled", "German")
        for name in ("NLL", "entropy", "MI")
    },
}
"""Columns of the second table of each task: the test set and the measure."""

PUBLISHED = {
    "maximum likelihood": (71.5, 0.837, 6.5),
    "maximum likelihood + TS": (71.5, 0.814, 6.2),
    "MC dropout": (71.3, 0.819, 6.4),
    "SNGP": (72.7, 0.807, 6.3),
    "sparse GP attention": (66.5, 0.948, 2.5),
    "random-feature GP attention": (75.9, 0.713, 4.6),
}
"""Accuracy, NLL and ECE on CIFAR-10 in the paper on random-feature Gaussian-process attention."""

NAMES = {
    "cifar10": "On CIFAR-10 with a small vision transformer",
    "lm_text": "For a small language model",
}


def files(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The committed results."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("scratch-*.json"))]


def texts(found: Sequence[dict[str, Any]] | None = None) -> dict[str, str]:
    """The verdicts, and the tables and provenance of every task, as texts of the page."""
    found = files() if found is None else found
    texts = {"verdicts": "\n\n".join(verdicts(found))}
    for each in found:
        for cell, runs in results.cells([each]).items():
            own, task = {cell: runs}, cell[1]
            tables = (
                results.table(own, MEASURES[task], results.methods(own)),
                details(runs, DETAILS[task], results.methods(own)),
            )
            texts[task] = "\n\n".join(table.markdown().strip() for table in tables)
            texts[f"{task} made"] = provenance(each, task)
            if task == "cifar10":
                texts["cifar10 published"] = published().markdown().strip()
    return texts


def verdicts(found: Sequence[dict[str, Any]] | None = None) -> Iterator[str]:
    """The best methods of every task, with and without attention noise."""
    for each in files() if found is None else found:
        for cell, runs in results.cells([each]).items():
            chosen = [m for m in results.methods({cell: runs}) if m.endswith(TS)]
            text = f"{NAMES[cell[1]]}, {_verdict(cell, runs, chosen, 'NLL', 'lowest NLL')}"
            if results.has_measure(runs, "outside AUROC"):
                best = _verdict(cell, runs, chosen, "outside AUROC", "highest AUROC for MNIST")
                text += f" {best}"
            yield text


def _verdict(
    cell: results.Cell, runs: list[results.Run], chosen: Sequence[str], name: str, label: str
) -> str:
    """The best method, the best one of the other side, and better ones with fewer seeds."""
    by_method = {m: results.values(runs, m, name) for m in chosen}
    column, row = results.column(by_method, name)
    shown = {m: x.removesuffix(f" {results.NEAR}") for m, x in zip(chosen, column, strict=True)}
    best = chosen[row]
    mine, whole = results.has_noise(best), len(by_method[best])
    sign = 1 if results.LOWER[name] else -1
    order = sorted(chosen, key=lambda m: sign * statistics.fmean(by_method[m].values()))
    text = f"**{best}** has the {label} ({shown[best]})"
    for other in order[: order.index(best)]:
        text += f", but {other} has {shown[other]} with {len(by_method[other])} of {whole} seeds"
    others = [m for m in order if results.has_noise(m) != mine and len(by_method[m]) == whole]
    if others:
        kind, second = "without" if mine else "with", others[0]
        text += f"; the best method {kind} attention noise is {second} ({shown[second]})"
        if not mine and results.costs({cell: runs}, [second], "passes") == [1]:
            text += ", for which tuning chose no noise"
    return f"{text}."


def provenance(found: Mapping[str, Any], task: str) -> str:
    """Seeds, settings and machine."""
    own = found["tasks"][task]
    seeds = len({run["seed"] for run in own["runs"]})
    settings = ", ".join(f"{name} {value}" for name, value in own["settings"].items())
    return f"{seeds} seeds; {settings}; {found['machine']}, torch {found['versions']['torch']}."


def details(
    runs: list[results.Run], columns: Mapping[str, tuple[str, str]], methods: Sequence[str]
) -> Table:
    """Means over seeds with 95 % intervals, in per cent."""
    rows = []
    for method in methods:
        own = [run["measures"] for run in runs if run["method"] == method]
        values = ([m[part].get(name) for m in own] for part, name in columns.values())
        rows.append([method, *map(_cell, values)])
    return Table(["method", *columns], rows)


def _cell(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    width = results.half_width(known)
    return f"{statistics.fmean(known):.1f}" + ("" if width != width else f" ± {width:.1f}")


def published() -> Table:
    """The paper's numbers."""
    rows = [[name, f"{a:.1f}", f"{b:.3f}", f"{c:.1f}"] for name, (a, b, c) in PUBLISHED.items()]
    return Table(["published", "accuracy", "NLL", "ECE"], rows)


if __name__ == "__main__":
    print("\n\n".join(texts().values()))
