"""Plots the cost of a training step against the length of texts: python tools/plot_costs.py.

Reads `bench.json` and `bench-forms.json` in `benchmarks/results`, which `babn bench` wrote on a
GPU, and draws `docs/figures/costs.png`: time of a training step relative to softmax in the same
form, against the length of texts.
"""

import json
from pathlib import Path
from typing import Any

from babn import plots
from babn.benchmark.results import Row, rows_of
from babn.plots.figures import drawing, line_look, new_figure

ROOT = Path(__file__).parents[1]
RESULTS, FIGURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "figures"

NAMES = ("BABN", "BAM", "BABN heads", "BABN pairs")
LINES = {"compiled": "o-", "eager": "o:", "graphs": "o--"}

Ratios = dict[int, float]


def measured(rows: list[Row], name: str, form: str) -> Ratios:
    """Time of a training step relative to softmax in the same form, by length."""
    seconds = {
        (row.name, row.size): row.cost.seconds
        for row in rows
        if (row.task, row.form, row.size.model) == ("train", form, "albert") and row.cost
    }
    return {
        size.length: own / seconds["softmax", size]
        for (method, size), own in seconds.items()
        if method == name and ("softmax", size) in seconds
    }


@drawing
def costs(runs: list[list[Row]]) -> Any:
    """Steps of all methods relative to softmax in the same run, by length."""
    figure = new_figure((plots.SINGLE * 1.6, 2.8))
    panel = figure.subplots()
    panel.axhline(1, color="0.6", linewidth=1, label="softmax")
    for index, name in enumerate(NAMES):
        look = {"color": line_look(index)["color"], "markersize": 3, "clip_on": False}
        for form, line in LINES.items():
            found = sorted(each for rows in runs for each in measured(rows, name, form).items())
            if found:
                panel.plot(*zip(*found, strict=True), line, label=f"{name}, {form}", **look)
    panel.set(xscale="log", yscale="log", xlabel="tokens")
    panel.set_ylabel("time of a training step\nover softmax's")
    ticks = sorted({row.size.length for rows in runs for row in rows if row.size.model == "albert"})
    panel.set_xticks(ticks, [str(n) for n in ticks])
    panel.minorticks_off()
    ratios_shown = [1, 1.5, 2, 3, 5, 10]
    panel.set_yticks(ratios_shown, [f"{tick:g}" for tick in ratios_shown])
    panel.legend(fontsize=6, handlelength=3, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def main() -> None:
    """Writes the figure."""
    files = [RESULTS / name for name in ("bench.json", "bench-forms.json")]
    runs = [rows_of(json.loads(path.read_text(encoding="utf-8"))) for path in files]
    print(plots.save(costs(runs), FIGURES / "costs.png"))


if __name__ == "__main__":
    main()
