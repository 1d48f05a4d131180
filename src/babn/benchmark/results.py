"""The results of the benchmark: their types, as JSON, and as tables. Needs no torch."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Task = Literal["train", "mean", "sample", "generate"]
"""A training step, a forward pass at the posterior mean, samples, or generation."""

Form = Literal["eager", "compiled", "graphs", "pass", "batched"]
"""How a model runs: eagerly, by `torch.compile`, or by `torch.compile` in the mode
`reduce-overhead`, which captures CUDA graphs to save launches; or on one text, in one pass at the
posterior mean or as a batch of samples."""

FORMS: tuple[Form, ...] = ("eager", "compiled", "graphs")
SAMPLED: tuple[Form, ...] = ("pass", "batched")

SAMPLES = 20
GENERATED = 32

TITLES: dict[Task, str] = {
    "train": "Training step, optimiser included",
    "mean": "A pass at the posterior mean",
    "sample": f"{SAMPLES} samples of one text, beside one pass at the posterior mean",
    "generate": f"Prompt and {GENERATED} generated tokens, of one sample of attention",
}

NAMES = {
    "softmax": "softmax",
    "keys": "BABN",
    "pairs": "BABN pairs",
    "heads": "BABN heads",
    "bam": "BAM",
}
"""Methods by the name of the option, as tables call them."""


@dataclass(frozen=True)
class Size:
    """Sizes of model and batch.

    Attributes:
        length: Tokens in a text.
        batch: Texts in a batch.
        layers: Attention layers; in ALBERT they share one set of weights.
        width: Size of the hidden states.
        heads: Attention heads.
        model: `"albert"`, an encoder with a classifier, or `"llama"`, a decoder with one key head
            for four query heads.
    """

    length: int
    batch: int
    layers: int = 12
    width: int = 768
    heads: int = 12
    model: Literal["albert", "llama"] = "albert"


@dataclass(frozen=True)
class Cost:
    """The cost of a step.

    Attributes:
        seconds: Median time.
        spread: Half of the interquartile range.
        memory: Peak GPU memory in bytes; `None` on a CPU.
        busy: GPU time in seconds, without waiting for launches; `None` on a CPU.
        kernels: Name, seconds and number of calls of the GPU kernels with the longest times.
    """

    seconds: float
    spread: float
    memory: int | None
    busy: float | None = None
    kernels: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        task: What is measured.
        name: Name of the method.
        form: How the model runs.
        size: Sizes of model and batch.
        cost: The cost; `None` before it is measured, or if the memory was too small.
    """

    task: Task
    name: str
    form: Form
    size: Size
    cost: Cost | None = None


def plain(rows: Iterable[Row], versions: dict[str, str]) -> dict[str, Any]:
    """JSON values, with today's date."""
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "versions": versions, "rows": [asdict(row) for row in rows]}


def rows_of(found: dict[str, Any]) -> list[Row]:
    """The measurements in the JSON values of `plain`."""
    rows = []
    for each in found["rows"]:
        cost = Cost(**each["cost"]) if each["cost"] else None
        rows.append(Row(**{**each, "size": Size(**each["size"]), "cost": cost}))
    return rows


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Rows of two runs, in which new measurements replace old ones."""
    found = {(row.task, row.name, row.form, row.size): row for row in (*old, *new)}
    return list(found.values())


def tables(rows: Iterable[Row]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, headings and rows of a table for each model and task that was measured."""
    groups: dict[tuple[str, Task], list[Row]] = {
        (model, task): [] for model in ("albert", "llama") for task in TITLES
    }
    for row in rows:
        groups[row.size.model, row.task].append(row)
    return [
        (TITLES[task] + (", decoder" if model == "llama" else ""), *shown(found, task))
        for (model, task), found in groups.items()
        if found
    ]


def shown(rows: list[Row], task: Task) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table: a row for each method and size, columns for each form."""
    costs = {(row.size, row.name, row.form): row.cost for row in rows}
    forms = [form for form in FORMS if any(row.form == form for row in rows)]
    headings, lines = ["method", "tokens", "batch"], []
    for form in forms:
        headings += [f"{form} ms", "x softmax", "GiB", "x softmax"]
    if task == "sample":
        headings += ["pass ms", "samples ms", "in passes"]
    for size, name in dict.fromkeys((row.size, row.name) for row in rows):
        line = [name, str(size.length), str(size.batch)]
        for form in forms:
            failed = costs.get((size, name, form), ...) is None
            own, base = (costs.get((size, each, form)) for each in (name, "softmax"))
            time, memory = _seconds(own, base), _memory(own, base)
            line += ["out of memory" if failed else time[0], time[1], *memory]
        if task == "sample":
            one, several = (costs.get((size, name, form)) for form in ("pass", "batched"))
            line += [_seconds(one, None)[0], *_seconds(several, one)]
        lines.append(line)
    kept = [i for i in range(len(headings)) if any(line[i] != "-" for line in lines)]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _seconds(own: Cost | None, base: Cost | None) -> tuple[str, str]:
    """Milliseconds, and their ratio to another cost."""
    if own is None:
        return "-", "-"
    return f"{1e3 * own.seconds:.1f}", ratio(own.seconds, base.seconds if base else None)


def _memory(own: Cost | None, base: Cost | None) -> tuple[str, str]:
    """Memory in GiB, and its ratio to that of another cost."""
    if own is None or own.memory is None:
        return "-", "-"
    return f"{own.memory / 2**30:.1f}", ratio(own.memory, base.memory if base else None)


def ratio(value: float | None, base: float | None) -> str:
    """The quotient of two numbers, if both are known."""
    return "-" if not value or not base else f"{value / base:.2f}"
