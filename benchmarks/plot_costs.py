"""Draws what a training step costs against the length of texts: python benchmarks/plot_costs.py.

Reads `benchmarks/results/bench.json`, which `babn bench` wrote on a GPU, and
`benchmarks/results/instructions.json`, and draws `docs/figures/costs.png`: times of a step over
that of softmax, and the floor below which these kernels cannot get.

The floor is the softmax step without its attention, plus for each kernel of BABN the longer of two
times: that of issuing its instructions, and that of moving its numbers at the memory's full rate;
with maps over keys plus their products at the full rate of the tensor cores.
"""

import json
from pathlib import Path
from typing import Any

from babn import plots
from babn.plots.style import drawing, line_look, new_figure

ROOT = Path(__file__).parents[1]
RESULTS, FIGURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "figures"

BANDWIDTH = 4.8e12
"""Bytes a second of an H200, by its data sheet."""

PRODUCTS = 989e12
"""Its operations a second in half precision."""

BYTES = {
    "forward": 4,
    "rows": 12,
    "columns": 4,
    "queries": 2,
    "heads": 2 * 6 + 8 + 4 + 10,
}
"""Moved for each query-key pair. Forward reads two numbers of the upward path, in half precision;
rows read them, write their gradients and two numbers more, of which columns read both and queries
one. Maps over heads: read one number and write two, in both directions; read three and write one
for their gradients; read one and write one for a step of the path, read four and write one for
its."""

NAMES = ("BAM", "BABN heads", "BABN keys", "BABN keys, reference")

Times = dict[int, float]


def seconds(rows: list[dict[str, Any]], task: str, name: str) -> Times:
    """Median seconds by length."""
    return {
        row["size"]["length"]: row["cost"]["seconds"]
        for row in rows
        if (row["task"], row["name"]) == (task, name) and row["cost"]
    }


def pairs(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Query-key pairs of one layer, over all heads, by length."""
    sizes = [row["size"] for row in rows if row["task"] == "train"]
    return {s["length"]: s["batch"] * s["heads"] * s["length"] ** 2 for s in sizes}


def issue_seconds(counted: dict[str, Any], rule: str) -> dict[str, float]:
    """What a pair costs to issue in each kernel, where shapes are at least one as they usually are.

    Forward has a loop over scores first; where a kernel has two loops for the rest, the faster one
    is for such shapes.
    """
    found = {}
    for kernel in ("forward", "rows", "columns", "queries"):
        loops = [loop["ms_per_100M_pairs"] for loop in counted[f"{rule}, {kernel}"]]
        first = loops.pop(0) if kernel == "forward" else 0.0
        found[kernel] = (first + min(loops)) * 1e-3 / 1e8
    return found


def floor(rows: list[dict[str, Any]], counted: dict[str, Any], rule: str) -> Times:
    """The least seconds of a step, by length."""
    issue = issue_seconds(counted, rule)
    if rule.endswith("heads"):
        issue["heads"] = 0.0
    each = sum(max(time, BYTES[kernel] / BANDWIDTH) for kernel, time in issue.items())
    # Three maps, each in three products of two operations for every pair and key.
    key = 0.0 if rule.endswith("heads") else 18 / PRODUCTS
    step, alone = seconds(rows, "train", "softmax"), seconds(rows, "attention", "softmax")
    layers = {row["size"]["length"]: row["size"]["layers"] for row in rows}
    return {
        n: step[n] + layers[n] * ((each + key * n) * pairs(rows)[n] - alone[n])
        for n in step
        if n in alone
    }


@drawing
def costs(rows: list[dict[str, Any]], counted: dict[str, Any]) -> Any:
    """Steps of all rules over that of softmax, by length."""
    figure = new_figure((plots.SINGLE * 1.3, 2.8))
    panel = figure.subplots()
    base = seconds(rows, "train", "softmax")
    panel.axhline(1, color="0.6", linewidth=1, label="softmax")
    curves = {name: seconds(rows, "train", name) for name in NAMES}
    curves |= {f"floor, {rule}": floor(rows, counted, rule) for rule in ("BABN heads", "BABN keys")}
    for index, (name, times) in enumerate(curves.items()):
        lengths = sorted(times)
        ratios = [times[n] / base[n] for n in lengths]
        panel.plot(lengths, ratios, marker="o", markersize=3, label=name, **line_look(index))
    panel.set(xscale="log", yscale="log", xlabel="tokens", ylabel="training step / softmax's")
    panel.set_xticks(sorted(base), [str(n) for n in sorted(base)])
    panel.minorticks_off()
    ticks = [1, 1.5, 2, 3, 5, 10]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.legend(fontsize=6)
    return figure


def main() -> None:
    """Writes the figure."""
    rows = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))["rows"]
    counted = json.loads((RESULTS / "instructions.json").read_text(encoding="utf-8"))["kernels"]
    print(plots.save(costs(rows, counted), FIGURES / "costs.png"))


if __name__ == "__main__":
    main()
