"""Plots the cost of a training step against the length of texts: python tools/plot_costs.py.

Reads `benchmarks/results/bench.json`, which `babn bench` wrote on a GPU, and draws
`docs/figures/costs.png`: GPU time of a step relative to softmax, with the lower bounds of
`tools/floors.py`.
"""

import json
from pathlib import Path
from typing import Any

from floors import floors

from babn import plots
from babn.benchmark.results import rows_of
from babn.benchmark.suite import Row
from babn.plots.style import drawing, line_look, new_figure

ROOT = Path(__file__).parents[1]
RESULTS, FIGURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "figures"

NAMES = ("BAM", "BABN heads", "BABN keys", "BABN keys, reference")

Ratios = dict[int, float]


def measured(rows: list[Row], name: str) -> Ratios:
    """GPU time of a training step relative to softmax, by length."""
    work = {
        (row.name, row.size): row.cost.busy
        for row in rows
        if row.task == "train" and row.cost and row.cost.busy
    }
    return {
        size.length: busy / work["softmax", size]
        for (rule, size), busy in work.items()
        if rule == name and ("softmax", size) in work
    }


@drawing
def costs(rows: list[Row]) -> Any:
    """Steps of all methods relative to softmax, by length."""
    figure = new_figure((plots.SINGLE * 1.6, 2.8))
    panel = figure.subplots()
    panel.axhline(1, color="0.6", linewidth=1, label="softmax")
    bounds = floors(rows)
    for index, name in enumerate(NAMES):
        color = line_look(index)["color"]
        if found := sorted(measured(rows, name).items()):
            look = {"color": color, "markersize": 3, "clip_on": False}
            panel.plot(*zip(*found, strict=True), "o-", label=name, **look)
        least = [
            (n, floor)
            for (task, rule, n), (_, floor) in bounds.items()
            if (task, rule) == ("train", name)
        ]
        if least:
            panel.plot(*zip(*least, strict=True), "--", color=color, linewidth=1, label="its floor")
    panel.set(xscale="log", yscale="log", xlabel="tokens")
    panel.set_ylabel("GPU time of a training step\nover softmax's")
    ticks = sorted({row.size.length for row in rows if row.task == "train"})
    panel.set_xticks(ticks, [str(n) for n in ticks])
    panel.minorticks_off()
    ratios_shown = [1, 1.5, 2, 3, 5, 10, 20, 40]
    panel.set_yticks(ratios_shown, [f"{tick:g}" for tick in ratios_shown])
    panel.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def main() -> None:
    """Writes the figure."""
    found = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))
    print(plots.save(costs(rows_of(found)), FIGURES / "costs.png"))


if __name__ == "__main__":
    main()
