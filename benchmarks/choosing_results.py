"""Collects the runs of `choosing.py` into one file, and makes tables and ranks of such files.

    python benchmarks/choosing_results.py DIR/minilm-* --out benchmarks/results/choosing-minilm.json
        [--costs DIR/minilm-mrpc]

Runs that share a GPU do not show how long they take. `--costs` has the folder of a short run of one
process, `choosing.py --costs`, with two seeds, of which the second gives the times.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from noise_results import _rounded as rounded

from babn.evaluation.tables import Table
from babn_paper.method_comparison.example_scores import LOWER_IS_BETTER
from babn_paper.method_comparison.interval_table import NEAR
from babn_paper.method_comparison.method_catalogue import GROUPS, TS

Run = dict[str, Any]
Cell = tuple[str, str]
"""A model and a task."""

LEVEL = 0.05
"""Significance level of all tests."""

SHIFTED = "shift "
"""Prefix of measures under a shift."""

DIGITS: dict[str, tuple[float, int]] = {
    "accuracy": (100, 1),
    "NLL": (1, 3),
    "ECE": (100, 1),
    "error AUROC": (100, 1),
    "outside AUROC": (100, 1),
    "outside FPR95": (100, 1),
    "set size": (1, 2),
}
"""Factor and digits of each measure in tables."""

LOWER = {**LOWER_IS_BETTER, "set size": True}
"""Whether lower values of a measure are better."""

COSTS: dict[str, Callable[[Run], float | None]] = {
    "models": lambda run: run["cost"]["trainings"],
    "training": lambda run: run["cost"].get("training"),
    "passes": lambda run: run["cost"]["passes"],
    "seconds": lambda run: run["cost"].get("seconds"),
    "memory": lambda run: run["cost"]["memory"],
    "lines": lambda run: run["cost"]["lines"],
    "tried": lambda run: run["tried"],
}
TIMES = ("training", "seconds")
NOISY = "BABN", "BAM"
ADAPTERS = {method.name for method in GROUPS["adapters"]}
MOST = 0.75

FAILED = 0.6
"""Share of the best accuracy below which a method has failed."""

RELATIVE = ("seconds", "memory")
"""Costs that tables show in units of those of the deterministic model."""


def collect(folders: Iterable[Path], costs: Path | None = None) -> dict[str, Any]:
    """The runs of all tasks of one model, with times from the folder of costs."""
    times = {} if costs is None else times_of(read_runs(costs))
    tasks: dict[str, Any] = {}
    for folder in folders:
        about = json.loads((folder / "about.json").read_text())
        runs = [_timed(run, times) for run in read_runs(folder)]
        tasks[about["task"]] = {"settings": about["settings"], "runs": rounded(runs)}
    shared = {name: about[name] for name in ("model", "versions", "machine")}
    return {**shared, "tasks": tasks}


def read_runs(folder: Path) -> list[Run]:
    """The runs of a folder."""
    paths = sorted(set(folder.glob("*.json")) - {folder / "about.json"})
    return [json.loads(path.read_text()) for path in paths]


def times_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Times by method: those of its last seed, since the first one compiles kernels."""
    return {
        run["method"]: {name: run["cost"][name] for name in TIMES}
        for run in sorted(runs, key=lambda run: run["seed"])
    }


def _timed(run: Run, times: Mapping[str, dict[str, float]]) -> Run:
    """A run with the given times in place of its own; without, if there are none."""
    cost = {name: each for name, each in run["cost"].items() if name not in TIMES}
    return {**run, "cost": cost | times.get(run["method"].removesuffix(TS), {})}


def cells(files: Sequence[dict[str, Any]]) -> dict[Cell, list[Run]]:
    """Runs by model and task."""
    return {
        (found["model"], task): each["runs"]
        for found in files
        for task, each in found["tasks"].items()
    }


def methods(found: Mapping[Cell, list[Run]]) -> list[str]:
    """The methods that all cells have, in the order of the catalogue."""
    order = [method.name for group in GROUPS.values() for method in group]
    shared = set.intersection(*({run["method"] for run in runs} for runs in found.values()))
    return sorted(shared, key=lambda name: order.index(name) if name in order else len(order))


def comparable(found: Mapping[Cell, list[Run]]) -> dict[Cell, list[Run]]:
    """The cells with at least `MOST` of all methods, so that a cut run does not hide methods."""
    own = {cell: {run["method"] for run in runs} - ADAPTERS for cell, runs in found.items()}
    every = set().union(*own.values())
    return {cell: found[cell] for cell, some in own.items() if len(some) >= MOST * len(every)}


def has_noise(method: str) -> bool:
    """Whether a method has attention noise."""
    return any(name in method for name in NOISY)


def values(runs: Sequence[Run], method: str, name: str) -> dict[int, float]:
    """A measure by seed; with `SHIFTED` the mean over the test sets under a shift."""
    own = {run["seed"]: run["measures"] for run in runs if run["method"] == method}
    measure = name.removeprefix(SHIFTED)
    found = {}
    for seed, measures in own.items():
        parts = [each for part, each in measures.items() if (part != "test") == (measure != name)]
        known = [each[measure] for each in parts if each.get(measure) is not None]
        if known:
            found[seed] = statistics.fmean(known)
    return found


def over_cells(found: Mapping[Cell, list[Run]], method: str, name: str) -> dict[int, float]:
    """A measure by seed, as mean over the cells that have it.

    Empty for a method that lacks one of them, since its mean would be that of other cells.
    """
    known = [values(runs, method, name) for runs in found.values() if has_measure(runs, name)]
    seeds = set.intersection(*map(set, known)) if known else set()
    return {seed: statistics.fmean(by_seed[seed] for by_seed in known) for seed in sorted(seeds)}


def has_measure(runs: Sequence[Run], name: str) -> bool:
    """Whether any method has a measure."""
    return any(values([run], run["method"], name) for run in runs)


def half_width(numbers: Sequence[float]) -> float:
    """Half the width of the 95 % t-interval of a mean; NaN for one number."""
    if len(numbers) < 2:
        return math.nan
    return _critical(len(numbers)) * statistics.stdev(numbers) / math.sqrt(len(numbers))


@lru_cache
def _critical(count: int) -> float:
    """The half width in standard errors."""
    from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / 2, count - 1))


def difference(
    found: Mapping[Cell, list[Run]], name: str, one: str, other: str
) -> tuple[int, int, int]:
    """In how many cells a method is significantly better than another, worse, and all cells."""
    better = worse = count = 0
    sign = 1 if LOWER[name.removeprefix(SHIFTED)] else -1
    for runs in found.values():
        own, others = values(runs, one, name), values(runs, other, name)
        if own and others:
            count += 1
            if not is_within_noise(own, others):
                ahead = statistics.fmean(sign * (others[s] - own[s]) for s in own if s in others)
                better, worse = better + (ahead > 0), worse + (ahead < 0)
    return better, worse, count


def is_within_noise(own: Mapping[int, float], best: Mapping[int, float]) -> bool:
    """Whether a paired t-test over the shared seeds finds no difference."""
    gaps = [own[seed] - best[seed] for seed in own.keys() & best.keys()]
    return len(gaps) < 2 or not abs(statistics.fmean(gaps)) > half_width(gaps)


def table(
    found: Mapping[Cell, list[Run]],
    names: Sequence[str],
    chosen: Sequence[str],
    with_costs: bool = True,
) -> Table:
    """Means over cells with intervals over seeds, and costs.

    Args:
        found: Runs by cell.
        names: The measures.
        chosen: The methods.
        with_costs: Whether there are columns of costs.
    """
    columns, best, heads = [], set(), []
    failed = failed_methods(found, chosen)
    for name in names:
        by_method = {method: over_cells(found, method, name) for method in chosen}
        if not all(by_method.values()):
            continue
        heads.append(name)
        cells_, row = column(by_method, name, failed)
        columns.append(cells_)
        best.add((row, len(heads)))
    priced = COSTS if with_costs else ()
    known = {name: each for name in priced if (each := costs(found, chosen, name))}
    for name, each in known.items():
        unit = "x" if name in ("training", *RELATIVE) else ""
        columns.append([f"{x:.1f}{unit}" if unit else f"{x:.0f}" for x in each])
    rows = [list(row) for row in zip(labels(found, chosen), *columns, strict=True)]
    return Table(["method", *heads, *known], rows, best=frozenset(best))


def in_words(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}{'s' if count > 1 else ''}"


def labels(found: Mapping[Cell, list[Run]], chosen: Sequence[str]) -> list[str]:
    """The names of methods; with the number of seeds, if others have more."""
    seeds = [len(over_cells(found, method, "accuracy")) for method in chosen]
    return [
        method if count == max(seeds) else f"{method} ({in_words(count, 'seed')})"
        for method, count in zip(chosen, seeds, strict=True)
    ]


def failed_methods(found: Mapping[Cell, list[Run]], chosen: Sequence[str]) -> set[str]:
    """Methods that have learnt next to nothing, which can be calibrated all the same.

    One of two classes is often right, but a model that always predicts it has the same accuracy
    with every seed.
    """
    failed = set()
    for runs in found.values():
        each = {m: values(runs, m, "accuracy") for m in chosen}
        means = {m: statistics.fmean(own.values()) for m, own in each.items() if own}
        failed |= {m for m, mean in means.items() if mean <= FAILED * max(means.values())}
        failed |= {m for m, own in each.items() if len(own) > 2 and len({*own.values()}) == 1}
    return failed


def column(
    by_method: Mapping[str, dict[int, float]], name: str, failed: Collection[str] = ()
) -> tuple[list[str], int]:
    """The cells of a measure, and the row of the best.

    A method that has failed, or that lacks seeds of others, is neither the best nor equal to it.
    """
    measure = name.removeprefix(SHIFTED)
    factor, digits = DIGITS[measure]
    means = {method: statistics.fmean(own.values()) for method, own in by_method.items()}
    sign = 1 if LOWER[measure] else -1
    most = max(map(len, by_method.values()))
    out = {method for method, own in by_method.items() if method in failed or len(own) < most}
    best = min(means, key=lambda m: (m in failed, m in out, sign * means[m]))
    shown = []
    for method, own in by_method.items():
        width = half_width([*own.values()]) * factor
        text = f"{means[method] * factor:.{digits}f}"
        text += "" if width != width else f" ± {width:.{digits}f}"
        near = method not in {best, *out} and is_within_noise(own, by_method[best])
        shown.append(f"{text} {NEAR}" if near else text)
    return shown, list(by_method).index(best)


def costs(found: Mapping[Cell, list[Run]], chosen: Sequence[str], name: str) -> list[float]:
    """A cost of each method, as mean over runs; empty if it was not measured."""
    means = {}
    for method in (*chosen, "deterministic"):
        runs = [run for each in found.values() for run in each if run["method"] == method]
        known = [COSTS[name](run) for run in runs]
        if not known or None in known:
            return []
        means[method] = statistics.fmean(x for x in known if x is not None)
    unit = means["deterministic"] if name in RELATIVE else 1.0
    return [means[method] / unit for method in chosen]


def mean_ranks(
    found: Mapping[Cell, list[Run]], name: str, chosen: Sequence[str]
) -> tuple[dict[str, float], int]:
    """Mean rank of methods over the cells that have a measure, and the number of such cells.

    A cell ranks the means over the seeds that all methods have, since the seeds of a task are no
    independent problems. Equal values share their mean rank.
    """
    from scipy import stats

    rows = []
    sign = 1 if LOWER[name.removeprefix(SHIFTED)] else -1
    for runs in found.values():
        each = [values(runs, method, name) for method in chosen]
        if seeds := set.intersection(*map(set, each)):
            rows.append(
                stats.rankdata([sign * statistics.fmean(x[s] for s in seeds) for x in each])
            )
    means = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    return dict(zip(chosen, means, strict=bool(rows))), len(rows)


def nemenyi(count: int, blocks: int) -> float:
    r"""The critical difference of mean ranks, $q \sqrt{k (k + 1) / 6 N}$ (Demšar 2006)."""
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - LEVEL, count, math.inf)) / math.sqrt(2)
    return q * math.sqrt(count * (count + 1) / (6 * blocks))


def rank_differences(
    found: Mapping[Cell, list[Run]], name: str, chosen: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Mean ranks, and by how much they have to differ."""
    ranks, blocks = mean_ranks(found, name, chosen)
    return ranks, nemenyi(len(ranks), blocks)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--costs", type=Path, help="folder of a run that was alone on the GPU")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = collect(args.folders, args.costs)
    args.out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
