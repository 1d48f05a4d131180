"""Texts on each task for the page on choosing a method: its data, a shift, other domains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import choosing_results as results
from choosing_results import SHIFTED, Cell, Run

from babn_paper.method_comparison.interval_table import NEAR
from babn_paper.method_comparison.method_catalogue import TS

PLAIN, DEFAULT = f"deterministic{TS}", f"BABN, not trained{TS}"
FEW = 3
"""Methods on par with the best that are named; if there are more, they are counted."""


@dataclass(frozen=True)
class Task:
    """A task in words.

    Attributes:
        name: Name of the data set.
        classes: What is classified.
        shift: Labelled data from elsewhere.
        outside: Out-of-domain data.
    """

    name: str
    classes: str
    shift: str
    outside: str


TASKS = {
    "clinc150": Task("CLINC150", "150 intents of requests", "–", "requests of no known intent"),
    "sst2": Task("SST-2", "sentiment of sentences on films", "Yelp and IMDb reviews", "AG news"),
    "mrpc": Task("MRPC", "paraphrases in pairs of news sentences", "QQP, questions", "RTE"),
    "snli": Task("SNLI", "entailment in pairs of captions", "MNLI, other genres", "QQP"),
}


def named(task: str) -> str:
    """The name of a task's data set."""
    return TASKS[task].name if task in TASKS else task


def listed(names: Sequence[str]) -> str:
    """Names with commas and an `and`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def overview(cells: Mapping[Cell, list[Run]]) -> str:
    """A table of the tasks."""
    known = [TASKS[task] for task in dict.fromkeys(task for _, task in cells) if task in TASKS]
    rows = [("task", "classes", "shift to", "outside"), ("---",) * 4]
    rows += [(each.name, each.classes, each.shift, each.outside) for each in known]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def shifts(cells: Mapping[Cell, list[Run]], chosen: Sequence[str]) -> Iterator[str]:
    """A line for each shift: what it costs the deterministic model, and who is the best."""
    for cell, runs in cells.items():
        own, name = {cell: runs}, f"{SHIFTED}NLL"
        if cell[1] in TASKS and results.has_measure(runs, name):
            accuracy, ece = (
                " to ".join(_shown(own, each, [PLAIN])[PLAIN] for each in (name, SHIFTED + name))
                for name in ("accuracy", "ECE")
            )
            yield (
                f"- **{named(cell[1])} to {TASKS[cell[1]].shift}**: the accuracy of {PLAIN} goes "
                f"from {accuracy} %, and its ECE from {ece} %. {_leaders(own, name, chosen)}"
            )


def outsides(cells: Mapping[Cell, list[Run]], chosen: Sequence[str]) -> Iterator[str]:
    """A line for each task: who detects the outside best, and how well entropies do."""
    models = {task: [model for model, each in cells if each == task] for _, task in cells}
    for cell, runs in cells.items():
        own, name = {cell: runs}, "outside AUROC"
        if cell[1] in TASKS and results.has_measure(runs, name):
            who = f" with {cell[0]}" if len(models[cell[1]]) > 1 else ""
            shown = _shown(own, name, [m for m in (PLAIN, DEFAULT) if m in chosen])
            entropies = listed([f"{method} has {value}" for method, value in shown.items()])
            yield (
                f"- **{named(cell[1])} against {TASKS[cell[1]].outside}**{who}: "
                f"{_leaders(own, name, chosen)} By entropy, {entropies}."
            )


def _leaders(cells: Mapping[Cell, list[Run]], name: str, chosen: Sequence[str]) -> str:
    """The best method of a measure, and the others that are on par with it."""
    by_method = {method: results.over_cells(cells, method, name) for method in chosen}
    column, row = results.column(by_method, name, results.failed_methods(cells, chosen))
    near = [m for m, text in zip(chosen, column, strict=True) if text.endswith(NEAR)]
    text = f"**{chosen[row]}** has the best {name} ({column[row]})."
    if not near:
        return f"{text} No other method is on par with it."
    who = listed([f"**{name}**" for name in near])
    if len(near) > FEW:
        count = len(chosen) - 1
        who = f"All {count}" if len(near) == count else f"{len(near)} of the {count}"
        who += " other methods" + (f", including {PLAIN}," if PLAIN in near else "")
    return f"{text} {who} {'are' if len(near) > 1 else 'is'} on par with it."


def _shown(cells: Mapping[Cell, list[Run]], name: str, chosen: Sequence[str]) -> dict[str, str]:
    """A measure of each method, as in tables."""
    by_method = {method: results.over_cells(cells, method, name) for method in chosen}
    column, _ = results.column(by_method, name)
    return {m: text.removesuffix(NEAR).strip() for m, text in zip(chosen, column, strict=True)}


def left_out(cells: Mapping[Cell, list[Run]]) -> str:
    """The methods that ran on some tasks only."""
    shared = {name.removesuffix(TS) for name in results.methods(cells)}
    tasks: dict[str, list[str]] = {}
    for (_, task), runs in cells.items():
        own = {
            run["method"].removesuffix(TS) for run in runs if run["method"] not in results.ADAPTERS
        }
        for name in sorted(own - shared):
            tasks.setdefault(name, []).append(named(task))
    together: dict[str, list[str]] = {}
    for name, where in tasks.items():
        together.setdefault(listed(list(dict.fromkeys(where))), []).append(name)
    return " ".join(
        f"{listed(names)} ran on {where} only, so {'they are' if len(names) > 1 else 'it is'} not "
        "part of means, ranks and advice."
        for where, names in together.items()
    )
