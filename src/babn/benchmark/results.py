"""The results of the benchmark as tables and as JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from babn.benchmark.steps import Form, Size
from babn.benchmark.suite import GENERATED, SAMPLES, Row, Task
from babn.benchmark.timing import Cost

TITLES: dict[Task, str] = {
    "train": "Training step, optimiser included",
    "mean": "A pass at the posterior mean",
    "sample": f"{SAMPLES} samples of one text, beside one pass at the posterior mean",
    "generate": f"Prompt and {GENERATED} generated tokens, of one sample of attention",
}

FORMS: tuple[Form, ...] = ("eager", "compiled", "graphs")


def shown(rows: list[Row], task: Task) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table: a row for each method and size, columns for each form."""
    rows = [row for row in rows if row.task == task]
    found = {(row.size, row.name, row.form): row for row in rows}
    forms = [form for form in FORMS if any(row.form == form for row in rows)]
    headings, lines = ["method", "tokens", "batch"], []
    for form in forms:
        headings += [f"{form} ms", "x softmax", "GiB", "x softmax"]
    if task == "sample":
        headings += ["pass ms", "samples ms", "in passes"]
    for size, name in dict.fromkeys((row.size, row.name) for row in rows):
        line = [name, str(size.length), str(size.batch)]
        for form in forms:
            own, base = (found.get((size, each, form)) for each in (name, "softmax"))
            line += _measured(own, base)
        if task == "sample":
            line += _passes(*(found.get((size, name, form)) for form in ("pass", "batched")))
        lines.append(line)
    kept = [i for i in range(len(headings)) if any(line[i] != "-" for line in lines)]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _measured(row: Row | None, base: Row | None) -> list[str]:
    """Time and memory of a row, each with its ratio to softmax."""
    seconds, memory = _numbers(row)
    base_seconds, base_memory = _numbers(base)
    failed = row is not None and seconds is None
    return [
        "out of memory" if failed else "-" if seconds is None else f"{1e3 * seconds:.1f}",
        ratio(seconds, base_seconds),
        "-" if memory is None else f"{memory / 2**30:.1f}",
        ratio(memory, base_memory),
    ]


def _passes(one: Row | None, several: Row | None) -> list[str]:
    times = [_numbers(one)[0], _numbers(several)[0]]
    shown = ["-" if each is None else f"{1e3 * each:.1f}" for each in times]
    return [*shown, ratio(times[1], times[0])]


def _numbers(row: Row | None) -> tuple[float | None, float | None]:
    """Seconds and bytes, if they were measured."""
    if row is None or row.cost is None:
        return None, None
    return row.cost.seconds, row.cost.memory


def ratio(value: float | None, base: float | None) -> str:
    """The quotient of two numbers, if both are known."""
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


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Rows of two runs, in which new measurements replace old ones."""
    found = {(row.task, row.name, row.form, row.size): row for row in (*old, *new)}
    return list(found.values())
