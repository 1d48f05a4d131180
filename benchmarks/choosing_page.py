"""The page docs/choosing.md, written from `benchmarks/results/choosing-*.json`.

`python tools/write_pages.py` writes it if there are results. `choosing_template.md` has the prose;
the texts for its places are computed here, the first lines and the advice included.
"""

import json
import re
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

TEMPLATE = Path(__file__).with_name("choosing_template.md")

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

TIMES = "training and seconds"
"""The columns of times, which are shown if they were measured."""

PLACE = re.compile(r"\{\{(.+?)\}\}")
"""A place of the template with its name."""

INCOMPLETE = "Not all methods were run here, so this table is not part of means and ranks."


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
    return fill(TEMPLATE.read_text(encoding="utf-8"), texts(found))


def texts(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The texts of the template's places; empty where results are missing."""
    cells = results.comparable(results.cells(found))
    of_default = standing_of_default(cells)
    return {
        "tasks": listed([named(task) for task in dict.fromkeys(_tasks(cells))]),
        "winners": winners([*standings(cells)]),
        **advice(cells),
        "conformal sets": guarantee(cells),
        "standings": standings_table([*standings(cells)]),
        "default": DEFAULT if of_default else "",
        "plain": PLAIN if of_default else "",
        "default standing": of_default,
        "data": tasks.overview(cells),
        "left out": tasks.left_out(cells),
        "shifts": "\n".join(tasks.shifts(cells, ranked(cells, f"{SHIFTED}NLL"))),
        "outsides": "\n".join(tasks.outsides(cells, ranked(cells, "outside AUROC"))),
        "times": TIMES if results.costs(cells, ["deterministic"], "training") else "",
        "tables": "\n\n".join(text.strip() for text in tables(found)),
        **from_scratch_results.texts(),
        "diagrams": "\n\n".join(diagrams(cells)),
        "provenance": provenance(found),
    }


def fill(template: str, texts: Mapping[str, str]) -> str:
    """The template with texts in its places, which are marked `{{NAME}}`.

    Sections, and paragraphs within a section, are left out if all of their places are empty.
    """
    paragraphs: list[str] = []
    for section in re.split(r"\n(?=##+ )", template):
        if _has_text(section, texts):
            paragraphs += [part for part in section.split("\n\n") if _has_text(part, texts)]
    whole = "\n\n".join(paragraph.strip() for paragraph in paragraphs)
    return PLACE.sub(lambda place: texts[place[1]], whole) + "\n"


def _has_text(part: str, texts: Mapping[str, str]) -> bool:
    places = PLACE.findall(part)
    return not places or any(texts.get(name) for name in places)


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
    return _table(rows) if len(rows) > 1 else ""


def ranked(cells: Mapping[Cell, list[Run]], name: str) -> list[str]:
    """The methods that are ranked by a measure: with temperature scaling and without adapters.

    The critical difference grows with the number of methods, and temperature scaling is free. The
    detector of novelty has the predictions of the deterministic model.
    """
    out = results.ADAPTERS | ({DISTANCE} if name != "outside AUROC" else set())
    return [m for m in results.methods(cells) if m.endswith(TS) and m not in out]


def advice(cells: Mapping[Cell, list[Run]]) -> dict[str, str]:
    """A list for each situation, which names the best methods there."""
    groups = {group: {method.name for method in methods} for group, methods in GROUPS.items()}
    once = groups["post-hoc"] | groups["trained"]
    situations = {
        "trained model": (groups["post-hoc"], groups["post-hoc"]),
        "one training": (once, groups["trained"]),
        "five trainings": (once | groups["ensembles"], groups["ensembles"]),
        "adapters": (groups["adapters"], groups["adapters"]),
    }
    found = {}
    for place, (names, needed) in situations.items():
        own = {
            cell: runs for cell, runs in cells.items() if needed & {run["method"] for run in runs}
        }
        chosen = [method for method in results.methods(own) if method in names] if own else []
        if chosen:
            own_tasks = listed(list(dict.fromkeys(named(task) for _, task in own)))
            where = f"These methods were run on {own_tasks} only.\n\n"
            found[place] = (where if len(own) < len(cells) else "") + _advice(own, chosen)
    return found


def guarantee(cells: Mapping[Cell, list[Run]]) -> str:
    """The method with the smallest conformal sets, and their coverage under a shift."""
    sizes = {m: results.over_cells(cells, m, "set size") for m in results.methods(cells)}
    if not all(sizes.values()):
        return ""
    best = results.column(sizes, "set size")[1]
    name = list(sizes)[best]
    text = f"At {COVERAGE:.0%} coverage, {_best(cells, sizes, 'set size')}"
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


def diagrams(cells: Mapping[Cell, list[Run]]) -> Iterator[str]:
    """The critical difference diagrams, which `draw` draws, where there are enough tasks."""
    for name, end in RANKED.items():
        own = ranked(cells, name)
        if results.mean_ranks(cells, name, own)[1] >= FEWEST:
            yield f"![Mean ranks by {LABELS[name]}](figures/choosing_{end}.png)"
            differences = significant(*results.rank_differences(cells, name, own))
            yield f"By {LABELS[name]}: {differences}"


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
    return "\n".join(lines)


def seeds_of(runs: Sequence[Run]) -> str:
    """The number of seeds, and the methods that have fewer."""
    counts = Counter(run["method"] for run in runs)
    most = max(counts.values())
    fewer = [f"{count} of {name}" for name, count in counts.items() if count < most]
    return f"{most} seeds" + (f" ({', '.join(fewer)})" if fewer else "")
