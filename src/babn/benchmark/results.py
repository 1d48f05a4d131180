"""The results of the benchmark as tables and as JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from babn.benchmark.steps import Size
from babn.benchmark.suite import SAMPLES, Row, Task
from babn.benchmark.timing import Cost

TITLES: dict[Task, str] = {
    "train": "Training step, optimiser included",
    "mean": "A pass at the posterior mean",
    "sample": f"{SAMPLES} samples of one text, in a loop and batched",
}


def columns(task: Task) -> tuple[str, ...]:
    """Headings of a table; batched samples are compared with a loop."""
    ratio = "x loop" if task == "sample" else "x softmax"
    return "rule", "tokens", "batch", "form", "ms", ratio, "GPU ms", "GiB", ratio


def table(rows: list[Row], task: Task) -> list[tuple[str, ...]]:
    """One row for each method and size in its fastest form, with ratios to softmax."""
    return [_line(row, _baseline(rows, row)) for row in best_forms(rows) if row.task == task]


def shown(rows: list[Row], task: Task) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table, without empty columns."""
    lines = table(rows, task)
    kept = [i for i in range(len(columns(task))) if any(line[i] != "-" for line in lines)]
    return [columns(task)[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _line(row: Row, base: Row | None) -> tuple[str, ...]:
    seconds, memory = _numbers(row)
    base_seconds, base_memory = _numbers(base)
    return (
        row.name,
        str(row.size.length),
        str(row.size.batch),
        row.form,
        "out of memory" if seconds is None else f"{1e3 * seconds:.1f}",
        _ratio(seconds, base_seconds),
        "-" if row.cost is None or row.cost.busy is None else f"{1e3 * row.cost.busy:.1f}",
        "-" if memory is None else f"{memory / 2**30:.1f}",
        _ratio(memory, base_memory),
    )


def _numbers(row: Row | None) -> tuple[float | None, float | None]:
    """Seconds and bytes, if they were measured."""
    if row is None or row.cost is None:
        return None, None
    return row.cost.seconds, row.cost.memory


def best_forms(rows: list[Row]) -> list[Row]:
    """The fastest form of each method and size; samples keep both forms."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row.task, row.name, row.size, row.form if row.task == "sample" else "")
        if key not in best or _seconds(row) < _seconds(best[key]):
            best[key] = row
    return list(best.values())


def _seconds(row: Row) -> float:
    return float("inf") if row.cost is None else row.cost.seconds


def _baseline(rows: list[Row], row: Row) -> Row | None:
    """The row of softmax, or for samples of the loop."""
    if row.task == "sample":
        return next((r for r in rows if r.task == "sample" and r.form == "loop"), None)
    same = [r for r in rows if (r.task, r.size, r.name) == (row.task, row.size, "softmax")]
    return min(same, key=_seconds, default=None)


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if not value or not base else f"{value / base:.2f}"


def plain(rows: Iterable[Row], versions: dict[str, str]) -> dict[str, Any]:
    """JSON values, with today's date."""
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "versions": versions, "rows": [asdict(row) for row in rows]}


def rows_of(found: dict[str, Any]) -> list[Row]:
    """The measurements in the JSON values of `plain`."""
    return [
        Row(
            **{
                **each,
                "size": Size(**each["size"]),
                "cost": Cost.of(each["cost"]) if each["cost"] else None,
            }
        )
        for each in found["rows"]
    ]
