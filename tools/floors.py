"""Lower bounds of the GPU time that `babn bench` measured.

A bound is the time of a softmax step without its attention, plus for each kernel of the method the
longer of two times: that of issuing its instructions (`tools/results/instructions.json`), and that
of moving its numbers at the peak bandwidth. Maps over keys add their products at the peak rate of
the tensor cores. Bounds and measurements are GPU time only.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from babn.benchmark.suite import Row, Task
from babn.benchmark.timing import Cost

RESULTS = Path(__file__).parent / "results"

BANDWIDTH = 4.8e12
"""Bytes per second of an H200, from its data sheet."""

PRODUCTS = 989e12
"""Its operations per second in half precision."""

COUNTED = {
    "BAM": "BAM",
    "BABN heads": "BABN heads",
    "BABN pairs": "BABN keys",
}
"""Methods as the benchmark and as `instructions.json` call them."""

BAM_BYTES = {"forward": 0, "rows": 4, "columns": 4}
"""Moved for each query-key pair by each kernel: rows write two numbers in half precision, which
columns read."""

BABN_BYTES = {"forward": 4, "rows": 12, "columns": 4, "queries": 2}
"""Forward reads two numbers of the upward path; rows read them and write their gradients; queries
read one of those that rows write."""

SHORT_BYTES = {"forward": 4, "rows": 12, "whole": 4}
"""With few keys, one kernel replaces columns and queries."""

HEAD_MAPS = 6 + 8 + 2 + 4
"""Bytes for each pair. Read one number and write two; read three and write one for their gradients;
write one for a step of the path, and read it and its gradient on the way back."""

AGAIN = 6
"""Bytes per pair if backward recomputes the outputs of maps over heads."""

KEY_MAPS: dict[Task, int] = {"train": 18, "mean": 6}
"""Operations for each pair and key: three maps of two, and twice as much for their gradients."""

ATTENTION = ("sdpa", "cudnn::fusion", "flash")
"""What softmax's kernels for attention have in their names."""


def counted() -> dict[str, Any]:
    """Instructions of the kernels' loops."""
    found: dict[str, dict[str, Any]]
    found = json.loads((RESULTS / "instructions.json").read_text(encoding="utf-8"))
    return found["kernels"]


def attention_seconds(cost: Cost) -> float:
    """Time of attention in a softmax step."""
    return sum(
        kernel.seconds for kernel in cost.kernels if any(part in kernel.name for part in ATTENTION)
    )


def issue_seconds(kernels: dict[str, Any], row: Row, name: str) -> float:
    """Issue time of a pair in a kernel, for Weibull shapes of at least one.

    Forward has a loop over scores first; where a kernel has two loops for the rest, the faster one
    is for such shapes.
    """
    method = "BABN mean" if row.task == "mean" else COUNTED[row.name]
    loops = [loop["ms_per_100M_pairs"] for loop in kernels[f"{method}, {name}"]]
    first = loops.pop(0) if name == "forward" else 0.0
    return float(first + min(loops)) * 1e-11


def pair_seconds(row: Row, kernels: dict[str, Any]) -> float:
    """The least time for a query-key pair of one layer."""
    moved = BAM_BYTES if row.name == "BAM" else BABN_BYTES
    if row.name != "BAM" and row.size.length <= WHOLE:
        moved = SHORT_BYTES
    total = sum(
        max(issue_seconds(kernels, row, name), number / BANDWIDTH)
        for name, number in moved.items()
        if row.task == "train" or name == "forward"
    )
    if row.name == "BABN heads":
        total += HEAD_MAPS / BANDWIDTH
    elif row.name != "BAM":
        total += KEY_MAPS[row.task] * row.size.length / PRODUCTS
    return total


def floors(rows: Iterable[Row]) -> dict[tuple[Task, str, int], tuple[float, float]]:
    """GPU time relative to softmax, measured and bound, by task, method and length."""
    rows, kernels = list(rows), counted()
    found = {}
    for row in rows:
        base = next((b for b in rows if b.name == "softmax" and _compared(b, row)), None)
        known = {"train": COUNTED, "mean": ("BABN pairs",)}.get(row.task, ())
        if row.name not in known or base is None:
            continue
        if not row.cost or not base.cost or not row.cost.busy or not base.cost.busy:
            continue
        size = row.size
        pairs = size.layers * size.batch * size.heads * size.length**2
        rest = base.cost.busy - attention_seconds(base.cost)
        least = rest + pairs * pair_seconds(row, kernels)
        measured = row.cost.busy / base.cost.busy
        found[row.task, row.name, size.length] = measured, least / base.cost.busy
    return found


def _compared(base: Row, row: Row) -> bool:
    return (base.task, base.size, base.form) == (row.task, row.size, row.form)
