"""Below what a step cannot get: the floors of what `babn bench` measured on a GPU.

A floor is the work of softmax's step without its attention, plus for each of the rule's kernels the
longer of two times: that of issuing its instructions (`tools/results/instructions.json`), and
that of moving its numbers at the memory's full rate. Maps over keys add their products at the full
rate of the tensor cores. All of it is work of the GPU alone, and so is what it is compared with.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from babn.benchmark.suite import Row, Task
from babn.benchmark.timing import Cost
from babn.kernels.limits import KEPT, WHOLE

RESULTS = Path(__file__).parent / "results"

BANDWIDTH = 4.8e12
"""Bytes a second of an H200, by its data sheet."""

PRODUCTS = 989e12
"""Its operations a second in half precision."""

COUNTED = {
    "BAM": "BAM",
    "BABN heads": "BABN heads",
    "BABN keys": "BABN keys",
    "BABN sigma=1e-6": "BABN mean",
}
"""Rules as the benchmark calls them, and as their instructions are counted."""

BAM_BYTES = {"forward": 0, "rows": 4, "columns": 4}
"""Moved for each query-key pair by each kernel: rows write two numbers in half precision, which
columns read."""

BABN_BYTES = {"forward": 4, "rows": 12, "columns": 4, "queries": 2}
"""Forward reads two numbers of the upward path; rows read them and write their gradients; queries
read one of those that rows write."""

SHORT_BYTES = {"forward": 4, "rows": 12, "whole": 4}
"""Of few keys one kernel does what columns and queries do."""

HEAD_MAPS = 6 + 8 + 2 + 4
"""Bytes for each pair. Read one number and write two; read three and write one for their gradients;
write one for a step of the path, and read it and its gradient on the way back."""

AGAIN = 6
"""Bytes for each pair where what maps over heads make is not kept but made again in backward."""

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
    """What attention takes of softmax's step."""
    return sum(
        kernel.seconds for kernel in cost.kernels if any(part in kernel.name for part in ATTENTION)
    )


def issue_seconds(kernels: dict[str, Any], rule: str, name: str) -> float:
    """What a pair costs to issue in a kernel, where shapes are at least one as they usually are.

    Forward has a loop over scores first; where a kernel has two loops for the rest, the faster one
    is for such shapes.
    """
    loops = [loop["ms_per_100M_pairs"] for loop in kernels[f"{COUNTED[rule]}, {name}"]]
    first = loops.pop(0) if name == "forward" else 0.0
    return float(first + min(loops)) * 1e-11


def pair_seconds(row: Row, kernels: dict[str, Any]) -> float:
    """The least time for a query-key pair of one layer."""
    moved = BAM_BYTES if row.name == "BAM" else BABN_BYTES
    if row.name != "BAM" and row.size.length <= WHOLE:
        moved = SHORT_BYTES
    total = sum(
        max(issue_seconds(kernels, row.name, name), number / BANDWIDTH)
        for name, number in moved.items()
        if row.task == "train" or name == "forward"
    )
    if row.name == "BABN heads":
        size = row.size
        kept = 4 * size.batch * size.heads * size.length**2 <= KEPT
        total += (HEAD_MAPS + (0 if kept else AGAIN)) / BANDWIDTH
    elif row.name != "BAM":
        total += KEY_MAPS[row.task] * row.size.length / PRODUCTS
    return total


def floors(rows: Iterable[Row]) -> dict[tuple[Task, str, int], tuple[float, float]]:
    """For task, rule and length, seconds of the GPU over softmax's: as measured, and the floor."""
    rows, kernels = list(rows), counted()
    found = {}
    for row in rows:
        base = next((b for b in rows if b.name == "softmax" and _compared(b, row)), None)
        if row.name not in COUNTED or row.task == "sample" or base is None:
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
    return (base.task, base.size) == (row.task, row.size)
