"""The page docs/choosing.md, written from `benchmarks/results/choosing-*.json`.

`python tools/write_pages.py` writes it if there are results. Everything that depends on numbers is
computed from them, the first lines and the advice included.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import choosing_results as results
import from_scratch_results
from choosing_results import SHIFTED, Cell, Run

from babn import plots
from babn.methods.catalogue import GROUPS, TS
from babn.methods.table import NEAR

RESULTS = Path(__file__).parent / "results"

PAGE = "docs/choosing.md"
MEASURES = ("accuracy", "NLL", "ECE", "error AUROC", "outside AUROC", "outside FPR95")
ALL_MEASURES = (
    *MEASURES[:4],
    f"{SHIFTED}accuracy",
    f"{SHIFTED}NLL",
    f"{SHIFTED}ECE",
    *MEASURES[4:],
)
RANKED = {
    "NLL": "nll",
    f"{SHIFTED}NLL": "shift_nll",
    "outside AUROC": "outside",
}
"""Measures with a critical difference diagram, and the ends of their files' names."""

LABELS = {
    "NLL": "NLL of test data",
    f"{SHIFTED}NLL": "NLL under a shift",
    "outside AUROC": "AUROC of out-of-domain detection",
    "accuracy": "accuracy",
}

OURS = "BABN"

NOTES = """Means over tasks, with 95 % intervals of a mean over seeds. Bold: the best of a column.
≈: a paired t-test over seeds finds no difference from the best (p ≥ 0.05). Accuracy, ECE, AUROC and
FPR95 are in per cent. "Outside" examples and errors are detected by the entropy of the prediction.
"TS" is temperature scaling. Training is time in units of the deterministic training; seconds and
memory are those of predictions in units of the deterministic ones; passes are forward passes of the
model; lines are what a user writes beside loading data and training; tried is the number of
settings tried on development data."""

LONG = """## Your texts are long

A forward pass costs more the longer the text, and samples multiply that cost. Methods with one pass
(temperature scaling, SNGP, Laplace) keep it; MC dropout and random attention take as many passes as
the table says. [Kernels and cost](kernels.md#what-noise-per-key-adds) has what noise per key adds
to a pass at each length."""

GUARANTEE = """## You need a guarantee

None of these numbers is one. [Conformal sets](uncertainty.md#decisions) hold the right class with a
probability that you set, for new data from the same source. `babn.fit_conformal` takes the
predictions of any method here; a better method gives smaller sets. Under a shift the guarantee does
not hold."""

INTRODUCTION = """Every method was fitted to the same data with the same encoder, and chose its
settings on development data. [`babn compare-methods`](own_data.md#comparing-methods) does the same
on your own texts."""

RANKS = """Mean ranks of methods with temperature scaling over models and tasks, each by its mean
over seeds. Bars join methods whose
mean ranks differ by less than the critical difference of the Nemenyi test (p 0.05;
[Demšar 2006](https://www.jmlr.org/papers/v7/demsar06a.html))."""

SCRIPTS = """`benchmarks/choosing.py` makes the runs on texts, `benchmarks/choosing_images.py` and
`benchmarks/choosing_lm.py` those from scratch, `benchmarks/choosing_results.py` collects them, and
`python tools/write_pages.py` writes this page."""


def files(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The committed results of all models."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("choosing-*.json"))]


def pages(found: Sequence[dict[str, Any]] | None = None) -> Iterator[tuple[str, str]]:
    """The page and its text; nothing without results."""
    found = files() if found is None else found
    if found:
        yield PAGE, page(found)


def page(found: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    cells = results.cells(found)
    parts = [
        "# Choosing a method",
        verdict(cells),
        INTRODUCTION,
        *advice(cells),
        GUARANTEE,
        "## All methods",
        NOTES,
        *tables(found),
        *from_scratch_results.sections(),
        *diagrams(cells),
        "## Where the numbers come from",
        provenance(found),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def verdict(cells: Mapping[Cell, list[Run]]) -> str:
    """The best method of each measure by mean rank, rivals included."""
    winners, lines = [], []
    for name in (*RANKED, "accuracy"):
        ranks, blocks = results.mean_ranks(cells, name, ranked(cells))
        if not blocks:
            continue
        best = min(ranks, key=lambda method: ranks[method])
        ours = min((m for m in ranks if is_ours(m)), key=lambda m: ranks[m], default=best)
        winners.append(f"**{best}** in {LABELS[name]}")
        text = f"- {LABELS[name]}: {best} has mean rank {ranks[best]:.1f} of {len(ranks)}"
        if ours != best:
            clear = ranks[ours] - ranks[best] > results.nemenyi(len(ranks), blocks)
            text += f"; the best with attention noise is {ours} with {ranks[ours]:.1f}, "
            text += "a significant difference" if clear else "which is no significant difference"
        lines.append(f"{text}.")
    return "\n".join(
        [f"The best with temperature scaling (TS), by mean rank: {', '.join(winners)}.", "", *lines]
    )


def ranked(cells: Mapping[Cell, list[Run]]) -> list[str]:
    """The methods that are ranked: with temperature scaling and without adapters.

    The critical difference grows with the number of methods, and temperature scaling is free.
    """
    adapters = {method.name for method in GROUPS["adapters"]}
    return [m for m in results.methods(cells) if m.endswith(TS) and m not in adapters]


def is_ours(method: str) -> bool:
    """Whether a method has the attention noise of this library."""
    return OURS in method


def advice(cells: Mapping[Cell, list[Run]]) -> Iterator[str]:
    """A paragraph for each situation, which names the best methods there."""
    known, names = results.methods(cells), {}
    for group, methods in GROUPS.items():
        names[group] = [method.name for method in methods if method.name in known]
    once = names["post-hoc"] + names["trained"]
    situations = {
        "You have a trained model": names["post-hoc"],
        "You can train once": once,
        "You can train five times": once + names["ensembles"],
        "You train adapters": names["adapters"],
    }
    for title, chosen in situations.items():
        if chosen:
            yield f"## {title}\n\n{_advice(cells, chosen)}"
    yield LONG


def _advice(cells: Mapping[Cell, list[Run]], chosen: Sequence[str]) -> str:
    sentences = []
    for name, purpose in (
        ("NLL", "For calibrated probabilities"),
        (f"{SHIFTED}NLL", "If the data will shift"),
        ("outside AUROC", "To detect out-of-domain inputs"),
    ):
        by_method = {method: results.over_cells(cells, method, name) for method in chosen}
        if all(by_method.values()):
            sentences.append(f"{purpose}, {_best(cells, by_method, name)}.")
    return " ".join(sentences)


def _best(
    cells: Mapping[Cell, list[Run]], by_method: Mapping[str, dict[int, float]], name: str
) -> str:
    """The best method, and the cheapest one within the noise of it."""
    column, row = results.column(by_method, name)
    best = list(by_method)[row]
    text = f"**{best}** is best ({name} {column[row]})"
    alike = [best] + [m for m, x in zip(by_method, column, strict=True) if x.endswith(NEAR)]
    costs = {
        method: (
            *results.costs(cells, [method], "training"),
            *results.costs(cells, [method], "passes"),
        )
        for method in alike
    }
    cheapest = min(alike, key=lambda method: costs[method])
    if costs[cheapest] == costs[best]:
        return text
    training, passes = costs[cheapest]
    spent = f"{training:.1f}x the training and {passes:.0f} passes"
    return f"{text}; **{cheapest}** is within its noise at {spent}"


def tables(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table of every model over its tasks, and of every task."""
    for each in found:
        cells = results.cells([each])
        chosen = results.methods(cells)
        yield f"### {each['model']}, mean over {', '.join(each['tasks'])}"
        yield results.table(cells, ALL_MEASURES, chosen).markdown()
        for cell, runs in cells.items() if len(cells) > 1 else ():
            own = {cell: runs}
            yield f"#### {each['model']}, {cell[1]}"
            yield results.table(own, ALL_MEASURES, results.methods(own)).markdown()


def diagrams(cells: Mapping[Cell, list[Run]]) -> Iterator[str]:
    """The critical difference diagrams, which `draw` draws."""
    yield "## Which differences are significant"
    yield RANKS
    for name, end in RANKED.items():
        _, blocks = results.mean_ranks(cells, name, ranked(cells))
        if blocks > 1:
            yield f"![Mean ranks by {LABELS[name]}](figures/choosing_{end}.png)"


def draw(found: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Draws the diagrams of the page."""
    cells, drawn = results.cells(found), []
    for name, end in RANKED.items():
        ranks, blocks = results.mean_ranks(cells, name, ranked(cells))
        if blocks > 1:
            distance = results.nemenyi(len(ranks), blocks)
            figure = plots.critical_difference(ranks, distance, label=f"mean rank by {name}")
            drawn.append(plots.save(figure, folder / f"choosing_{end}.png"))
    return drawn


def provenance(found: Sequence[dict[str, Any]]) -> str:
    """Models, machines, versions, settings and seeds."""
    lines = []
    for each in found:
        versions = ", ".join(f"{name} {number}" for name, number in each["versions"].items())
        for task, own in each["tasks"].items():
            seeds = len({run["seed"] for run in own["runs"]})
            settings = ", ".join(f"{name} {value}" for name, value in own["settings"].items())
            made = f"{each['machine']}, {versions}"
            lines.append(f"- {each['model']} on {task}: {seeds} seeds, {settings}; {made}")
    return "\n".join([*lines, "", SCRIPTS])
