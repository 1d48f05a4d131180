"""The page docs/choosing.md, written from `benchmarks/results/choosing-*.json`.

`python tools/write_pages.py` writes it if there are results. Everything that depends on numbers is
computed from them, the first lines and the advice included.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import choosing_results as results
import choosing_tasks as tasks
import from_scratch_results
from choosing_results import SHIFTED, Cell, Run
from choosing_tasks import DEFAULT, PLAIN, listed, named

from babn import plots
from babn_paper.method_comparison.comparison_runs import COVERAGE
from babn_paper.method_comparison.interval_table import NEAR
from babn_paper.method_comparison.method_catalogue import GROUPS, TS
from babn_paper.plots.ranks import critical_difference

RESULTS = Path(__file__).parent / "results"

PAGE = "docs/choosing.md"
MEASURES = ("accuracy", "NLL", "ECE", "error AUROC", "outside AUROC", "outside FPR95")
ALL_MEASURES = (
    *MEASURES[:4],
    f"{SHIFTED}accuracy",
    f"{SHIFTED}NLL",
    f"{SHIFTED}ECE",
    *MEASURES[4:],
    "set size",
)
RANKED = {
    "NLL": "nll",
    f"{SHIFTED}NLL": "shift_nll",
    "outside AUROC": "outside",
}
"""Measures with a critical difference diagram, and the ends of their files' names."""

DISTANCE = f"deterministic, distance{TS}"

FEWEST = 4
"""Tasks from which on there are diagrams: with fewer, next to no difference can be significant."""

LABELS = {
    "NLL": "NLL of test data",
    f"{SHIFTED}NLL": "NLL under a shift",
    "outside AUROC": "AUROC of out-of-domain detection",
    "accuracy": "accuracy",
}

NOTES = """Cells are means over tasks, with 95 % intervals of a mean over seeds. Accuracy, ECE,
AUROC and FPR95 are in %.

- **Bold** is the best of a column, among methods that have all seeds, reach 60 % of the best
  accuracy and do not always predict the same class. **≈** marks methods on par with the best
  (paired t-test over seeds, p ≥ 0.05).
- **BABN as published** [collapses](paper_as_written.md): it predicts the same class for all texts.
- **error AUROC**, **outside AUROC** and **outside FPR95**: detection of errors and out-of-domain
  examples by the entropy of the prediction. "Deterministic, distance" detects the latter by
  `babn.fit_novelty`, which was developed on the development data of CLINC150 and, with one seed, on
  this test of SST-2 (AG news).
- **set size**: mean number of classes in conformal sets, fitted on one half of the test data and
  measured on the other.
- **models**: trained models. **passes**: forward passes for one prediction.
- **memory** of prediction, with samples as one batch, relative to the deterministic model.
- **lines** of user code beside data loading and training. **tried**: settings tried on development
  data."""

TIMED = """- **training** and **seconds** are the times of all trainings and of predictions,
  relative to the deterministic model, measured with nothing else on the GPU."""

LONG = """## Your texts are long

Sampling multiplies the cost of a forward pass. Temperature scaling, SNGP and Laplace take one pass;
MC dropout and attention noise take as many as the table shows.
[Kernels and cost](kernels.md#what-noise-per-key-adds) has the cost of noise per key."""

GUARANTEE = """## You need a guarantee

[Conformal sets](uncertainty.md#decisions) contain the right class with a probability that you
choose, for new data from the same distribution. `babn.fit_conformal` works with the predictions of
any method on this page."""

INTRODUCTION = """Methods of uncertainty on text classification ({tasks}). By mean rank over tasks,
among methods with temperature scaling (TS):"""

COMPARED = """## How attention noise compares

Attention noise is BABN or BAM. The table shows mean ranks over tasks, and the number of tasks in
which the best method with attention noise is significantly better or worse than the best one
without. A task counts once for each model."""

ADAPTED = """All adapters have 10 times the learning rate of full fine-tuning. It was not tuned for
each kind, and PVeRA in particular may do better with another one."""

DETAILS = """## The data

All methods use the same data and encoder ("minilm" is all-MiniLM-L6-v2, "e5-small" is
intfloat/e5-small), and choose their settings on development data of the task, without shifted or
outside data. "Deterministic, distance" is the
[novelty detector](uncertainty.md#inputs-of-another-kind), which needs no noise.
[`babn compare-methods`](own_data.md#comparing-methods) runs the comparison on your own texts."""

RANKS = """Mean ranks of methods with temperature scaling over models and tasks. Each task ranks
the means over the seeds that all methods have. Bars join methods whose mean ranks differ by less
than the critical difference of the Nemenyi test (p 0.05;
[Demšar 2006](https://www.jmlr.org/papers/v7/demsar06a.html)), which is large for few tasks."""

SHIFT = """## What a shift does

Models and temperatures are fitted before the shift. Methods with temperature scaling:"""

OUTSIDE = """## Inputs of another domain

AUROC of detecting inputs of another domain, in %, for methods with temperature scaling:"""

INCOMPLETE = "Not all methods were run here, so this table is not part of means and ranks."

PUBLISHED = """For comparison, the published out-of-scope AUROC with BERT-base is 94.2 for the
deterministic model, 95.1 for MC dropout and 96.9 for SNGP
([Liu et al. 2020](https://arxiv.org/abs/2006.10108))."""

SCRIPTS = """`benchmarks/choosing.py` makes the runs on texts; `benchmarks/choosing_images.py` and
`benchmarks/choosing_lm.py` make those from scratch. Laplace was fitted on a CPU, and four
seeds of label smoothing on CIFAR-10 were evaluated on one.
`benchmarks/choosing_results.py` collects the runs, and `python tools/write_pages.py` writes this
page."""


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
    cells = results.comparable(results.cells(found))
    parts = [
        "# Choosing a method",
        INTRODUCTION.format(tasks=listed([named(task) for task in dict.fromkeys(_tasks(cells))])),
        winners([*standings(cells)]),
        *from_scratch_results.verdicts(),
        *advice(cells),
        guarantee(cells),
        COMPARED,
        standings_table([*standings(cells)]),
        standing_of_default(cells),
        DETAILS,
        tasks.overview(cells),
        tasks.left_out(cells),
        *section(SHIFT, tasks.shifts(cells, ranked(cells, f"{SHIFTED}NLL"))),
        *section(OUTSIDE, tasks.outsides(cells, ranked(cells, "outside AUROC"))),
        "## All methods",
        "\n".join(
            [NOTES, *([TIMED] if results.costs(cells, ["deterministic"], "training") else [])]
        ),
        *tables(found),
        *from_scratch_results.sections(),
        *diagrams(cells),
        "## Where the numbers come from",
        provenance(found),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def section(head: str, lines: Iterable[str]) -> Iterator[str]:
    """A heading with its text and a list; nothing if that is empty."""
    if found := list(lines):
        yield head
        yield "\n".join(found)


@dataclass(frozen=True)
class Standing:
    """The best method of a measure, and the best one of the other side.

    Attributes:
        label: What is measured.
        best: The method with the best mean rank.
        second: The best method without attention noise if `best` has it, otherwise with it.
        ranks: Mean rank of each method.
        better: Tasks in which `best` is significantly better than `second`.
        worse: Tasks in which it is significantly worse.
        tasks: Number of tasks.
    """

    label: str
    best: str
    second: str
    ranks: Mapping[str, float]
    better: int
    worse: int
    tasks: int

    @property
    def mine(self) -> bool:
        """Whether the best method has attention noise."""
        return results.has_noise(self.best)

    @property
    def tied(self) -> bool:
        """Whether both have the same mean rank."""
        return self.ranks[self.best] == self.ranks[self.second]

    @property
    def clear(self) -> bool:
        """Whether the best method is significantly better in more tasks than it is worse."""
        return self.better > self.worse

    @property
    def sides(self) -> tuple[str, str]:
        """The best method without attention noise, and the best one with it."""
        return (self.second, self.best) if self.mine else (self.best, self.second)

    def sentence(self, labels: str) -> str:
        """What the best method is ahead of, in the measures that are named."""
        if self.tied:
            return f"Attention noise and other methods tie in {labels}."
        rest = "other methods" if self.mine else "attention noise"
        name = f"**{self.best}**" + (", with attention noise," if self.mine else "")
        if self.clear:
            return f"{name} is ahead of {rest} in {labels}."
        lead = f"its lead over {rest} is within the noise of seeds"
        return f"{name} ranks first in {labels}, but {lead}."

    def row(self) -> list[str]:
        """A row of the table: both sides with their ranks, and tasks that noise wins and loses."""
        plain, noisy = self.sides
        won, lost = (self.better, self.worse) if self.mine else (self.worse, self.better)
        ranks = [f"{self.ranks[name]:.1f} of {len(self.ranks)}" for name in (plain, noisy)]
        counts = f"{won} / {lost} of {results.in_words(self.tasks, 'task')}"
        return [self.label, plain, ranks[0], noisy, ranks[1], counts]


def standings(cells: Mapping[Cell, list[Run]]) -> Iterator[Standing]:
    """The standing of every measure, for methods with temperature scaling."""
    for name in (*RANKED, "accuracy"):
        ranks, blocks = results.mean_ranks(cells, name, ranked(cells, name))
        if not blocks:
            continue
        best = min(ranks, key=lambda method: ranks[method])
        others = [m for m in ranks if results.has_noise(m) != results.has_noise(best)]
        second = min(others, key=lambda method: ranks[method])
        counts = results.difference(cells, name, best, second)
        yield Standing(LABELS[name], best, second, ranks, *counts)


def winners(found: Sequence[Standing]) -> str:
    """A list of the best methods: other methods before ours, and leads within the noise last."""
    labels: dict[tuple[bool, bool, bool, str], list[Standing]] = {}
    for each in found:
        own = (each.tied, not each.clear, each.mine, "" if each.tied else each.best)
        labels.setdefault(own, []).append(each)
    return "\n".join(
        f"- {labels[own][0].sentence(listed([each.label for each in labels[own]]))}"
        for own in sorted(labels, key=lambda own: own[:3])
    )


def standings_table(found: Sequence[Standing]) -> str:
    """Mean ranks of the best methods with and without attention noise."""
    head = [
        *("measure", "best without attention noise", "mean rank"),
        *("best with attention noise", "mean rank", "noise better / worse"),
    ]
    return _table([head, *(each.row() for each in found)])


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *rest])


def _tasks(cells: Iterable[Cell]) -> list[str]:
    return [task for _, task in cells]


def standing_of_default(cells: Mapping[Cell, list[Run]]) -> str:
    """Ranks of what the library does by default, and how it differs from temperature scaling."""
    rows = [["measure", f"mean rank of {DEFAULT}", f"of {PLAIN}", "significantly better / worse"]]
    for name in (*RANKED, "accuracy"):
        ranks, blocks = results.mean_ranks(cells, name, ranked(cells, name))
        if blocks and {DEFAULT, PLAIN} <= ranks.keys():
            better, worse, count = results.difference(cells, name, DEFAULT, PLAIN)
            own, plain = (f"{ranks[method]:.1f} of {len(ranks)}" for method in (DEFAULT, PLAIN))
            counts = f"{better} / {worse} of {results.in_words(count, 'task')}"
            rows.append([LABELS[name], own, plain, counts])
    if len(rows) == 1:
        return ""
    head = (
        f"**{DEFAULT}** is the result of `babn.convert` and `babn.tune_noise` for a trained model. "
        f"Compared with **{PLAIN}**:"
    )
    return f"{head}\n\n{_table(rows)}"


def ranked(cells: Mapping[Cell, list[Run]], name: str) -> list[str]:
    """The methods that are ranked by a measure: with temperature scaling and without adapters.

    The critical difference grows with the number of methods, and temperature scaling is free. The
    detector of novelty has the predictions of the deterministic model.
    """
    out = results.ADAPTERS | ({DISTANCE} if name != "outside AUROC" else set())
    return [m for m in results.methods(cells) if m.endswith(TS) and m not in out]


def advice(cells: Mapping[Cell, list[Run]]) -> Iterator[str]:
    """A list for each situation, which names the best methods there."""
    groups = {group: {method.name for method in methods} for group, methods in GROUPS.items()}
    once = groups["post-hoc"] | groups["trained"]
    situations = {
        "You have a trained model": (groups["post-hoc"], groups["post-hoc"]),
        "You can train once": (once, groups["trained"]),
        "You can train five times": (once | groups["ensembles"], groups["ensembles"]),
        "You train adapters": (groups["adapters"], groups["adapters"]),
    }
    for title, (names, needed) in situations.items():
        own = {
            cell: runs for cell, runs in cells.items() if needed & {run["method"] for run in runs}
        }
        chosen = [method for method in results.methods(own) if method in names] if own else []
        if chosen:
            found = listed(list(dict.fromkeys(named(task) for _, task in own)))
            where = "" if len(own) == len(cells) else f"These methods were run on {found} only.\n\n"
            where += f"{ADAPTED}\n\n" if needed == groups["adapters"] else ""
            yield f"## {title}\n\n{where}{_advice(own, chosen)}"
    yield LONG


def guarantee(cells: Mapping[Cell, list[Run]]) -> str:
    """The method with the smallest conformal sets, and their coverage under a shift."""
    sizes = {m: results.over_cells(cells, m, "set size") for m in results.methods(cells)}
    if not all(sizes.values()):
        return GUARANTEE
    best = results.column(sizes, "set size")[1]
    name = list(sizes)[best]
    text = f"{GUARANTEE} At {COVERAGE:.0%} coverage, {_best(cells, sizes, 'set size')}"
    kept, shifted = (
        results.over_cells(cells, name, each) for each in ("coverage", f"{SHIFTED}coverage")
    )
    text += (
        f" The sets of {name} contain the right class in {fmean(kept.values()):.1%} of test data"
    )
    if shifted:
        text += f", but in {fmean(shifted.values()):.1%} under a shift, where there is no guarantee"
    return f"{text}."


def _advice(cells: Mapping[Cell, list[Run]], chosen: Sequence[str]) -> str:
    items = []
    for name, purpose in (
        ("NLL", "For calibrated probabilities"),
        (f"{SHIFTED}NLL", "If the data will shift"),
        ("outside AUROC", "To detect out-of-domain inputs"),
    ):
        by_method = {method: results.over_cells(cells, method, name) for method in chosen}
        if all(by_method.values()):
            items.append(f"- {purpose}, {_best(cells, by_method, name)}")
    return "\n".join(items)


def _best(
    cells: Mapping[Cell, list[Run]], by_method: Mapping[str, dict[int, float]], name: str
) -> str:
    """The best method, and the simplest one on par with it."""
    column, row = results.column(by_method, name)
    best = list(by_method)[row]
    text = f"**{best}** is best ({name} {column[row]})"
    alike = [best] + [m for m, x in zip(by_method, column, strict=True) if x.endswith(NEAR)]
    costs = {
        method: [results.costs(cells, [method], cost)[0] for cost in ("models", "passes", "lines")]
        for method in alike
    }
    simplest = min(alike, key=lambda method: costs[method])
    if costs[simplest] == costs[best]:
        return f"{text}."
    models, passes, _ = costs[simplest]
    spent = results.in_words(round(models), "trained model")
    spent += f", {passes:.0f} pass{'es' if passes > 1 else ''}"
    return f"{text}. The simplest method on par with it is **{simplest}** ({spent})."


def tables(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table of every model over its tasks, and of every task."""
    compared = results.comparable(results.cells(found))
    for each in found:
        every = results.cells([each])
        cells = {cell: runs for cell, runs in every.items() if cell in compared}
        if len(cells) > 1:
            yield f"### {each['model']}, mean over {listed([named(task) for _, task in cells])}"
            yield results.table(cells, ALL_MEASURES, results.methods(cells)).markdown()
        for cell, runs in every.items():
            own = {cell: runs}
            yield f"### {each['model']}, {named(cell[1])}"
            if cell not in cells:
                yield INCOMPLETE
            alone = len(cells) < 2 or cell not in cells
            yield results.table(own, ALL_MEASURES, results.methods(own), alone).markdown()
            if cell[1] == "clinc150":
                yield PUBLISHED


def diagrams(cells: Mapping[Cell, list[Run]]) -> Iterator[str]:
    """The critical difference diagrams, which `draw` draws, where there are enough tasks."""
    found = [
        f"![Mean ranks by {LABELS[name]}](figures/choosing_{end}.png)\n\n"
        f"By {LABELS[name]}: {significant(*results.rank_differences(cells, name, own))}"
        for name, end in RANKED.items()
        if results.mean_ranks(cells, name, own := ranked(cells, name))[1] >= FEWEST
    ]
    if found:
        yield "## Which differences are significant"
        yield RANKS
        yield from found


def significant(ranks: Mapping[str, float], distance: float) -> str:
    """The pairs of methods whose mean ranks differ by more than the critical difference."""
    parts = []
    for name, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if behind := [other for other, its in ranks.items() if its - rank > distance]:
            parts.append(f"**{name}** is ahead of {listed([f'**{each}**' for each in behind])}")
    return (
        f"{'; '.join(parts)}; no other difference is significant."
        if parts
        else ("no difference is significant.")
    )


def draw(found: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Draws the diagrams of the page."""
    cells, drawn = results.comparable(results.cells(found)), []
    for name, end in RANKED.items():
        own = ranked(cells, name)
        if results.mean_ranks(cells, name, own)[1] >= FEWEST:
            ranks, distance = results.rank_differences(cells, name, own)
            figure = critical_difference(ranks, distance, label=f"mean rank by {LABELS[name]}")
            drawn.append(plots.save(figure, folder / f"choosing_{end}.png"))
    return drawn


def provenance(found: Sequence[dict[str, Any]]) -> str:
    """Models, machines, versions, settings and seeds."""
    lines = []
    for each in found:
        versions = ", ".join(f"{name} {number}" for name, number in each["versions"].items())
        for task, own in each["tasks"].items():
            seeds = seeds_of(own["runs"])
            settings = ", ".join(f"{name} {value}" for name, value in own["settings"].items())
            made = f"{each['machine']}, {versions}"
            lines.append(f"- {each['model']} on {named(task)}: {seeds}, {settings}; {made}")
    return "\n".join([*lines, "", SCRIPTS])


def seeds_of(runs: Sequence[Run]) -> str:
    """The number of seeds, and the methods that have fewer."""
    counts = Counter(run["method"] for run in runs)
    most = max(counts.values())
    fewer = [f"{count} of {name}" for name, count in counts.items() if count < most]
    return f"{most} seeds" + (f" ({', '.join(fewer)})" if fewer else "")
