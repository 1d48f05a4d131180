"""The table of attacks on many models, beside the paper's Table 3."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn.evaluation.tables import Table
from babn_paper.attacks.attack_page import SUBSTITUTED, resource_lines
from babn_paper.attacks.attack_records import attack_folders, shown_numbers
from babn_paper.attacks.plan import RECIPES, THREATS, Recipe
from babn_paper.experiments.naming import attention_name, preset_note
from babn_paper.experiments.result_pages import machine_of, versions_of, write_table
from babn_paper.experiments.result_tables import NONE, best_places, mean_and_deviation
from babn_paper.experiments.run_folder import write_json
from babn_paper.tasks.catalogue import find_task

TASKS = ("mrpc", "cola", "rte", "qqp", "sst2")

METHODS = ("softmax", "bam", "belief/paper", "belief/default")

PAPER: dict[tuple[Recipe, str], tuple[str, ...]] = {
    ("textfooler", "softmax"): ("6.5", "2.6", "16.2", "25.4", "7.0", "11.5"),
    ("textfooler", "bam"): ("6.2", "3.1", "17.8", "28.7", "12.5", "12.5"),
    ("textfooler", "belief/paper"): ("6.2", "5.1", "17.7", "33.7", "16.4", "15.8"),
    ("textbugger", "softmax"): ("10.6", "16.8", "19.9", "30.1", "40.1", "23.5"),
    ("textbugger", "bam"): ("9.9", "16.7", "21.0", "32.5", "51.7", "26.4"),
    ("textbugger", "belief/paper"): ("9.5", "17.6", "21.4", "35.8", "55.5", "28.0"),
    ("bae", "softmax"): ("44.8", "4.9", "35.6", "48.8", "13.9", "29.6"),
    ("bae", "bam"): ("48.6", "5.1", "36.3", "42.2", "22.8", "31.0"),
    ("bae", "belief/paper"): ("50.4", "7.1", "35.9", "42.8", "25.7", "32.4"),
}
"""Percentages of failed attacks on MRPC, CoLA, RTE, QQP and SST-2, and their average."""

Description = dict[str, Any]
"""The description of a finished attack: settings, resources and summary."""

CAPTION = (
    "Failed attacks in percent, mean ± standard deviation over training seeds; higher is better. "
    "Rows of the paper are as printed (for BAM under TextFooler it prints an average of 12.5, but "
    "the mean of the row is 13.7)."
)

SHARED = ("seed", "part", "data", "resources")
"""Settings that attacks on different models must share to be comparable."""


@dataclass(frozen=True)
class _Row:
    """Attacks of one recipe and threat model on one attention method."""

    recipe: Recipe
    method: str
    threat: str
    shares: dict[str, list[float]]  # of failed attacks, by task and seed

    def cells(self) -> list[str]:
        found = [mean_and_deviation(self.shares.get(task, []), percent=True) for task in TASKS]
        return [*found, NONE if self.average is None else f"{100 * self.average:.1f}"]

    @property
    def average(self) -> float | None:
        """The mean over tasks, if there are attacks on all of them."""
        means = self.means()
        return None if None in means else statistics.fmean(m for m in means if m is not None)

    def by_seed(self) -> list[list[float]]:
        """Shares of each column by seed; the average has none if tasks differ in their seeds."""
        of_tasks = [self.shares.get(task, []) for task in TASKS]
        same = len({len(shares) for shares in of_tasks}) == 1
        average = [statistics.fmean(each) for each in zip(*of_tasks, strict=True)] if same else []
        return [*of_tasks, average]

    def means(self) -> list[float | None]:
        of_tasks = [self.shares.get(task) for task in TASKS]
        return [statistics.fmean(shares) if shares else None for shares in of_tasks]


def descriptions(runs: Sequence[Path]) -> list[Description]:
    """The descriptions of all finished attacks on the models of runs."""
    return [each.describe() for run in runs for each in attack_folders(run)]


def attack_table(found: Sequence[Description], caption: str = CAPTION) -> Table:
    """Percentages of failed attacks, by recipe, attention and threat model (rows) and task.

    Args:
        found: The attacks.
        caption: Beginning of the caption, before the circumstances of the attacks.
    """
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for recipe in RECIPES:
        ours: list[tuple[int, _Row]] = []
        for method in methods_of(found):
            made = list(_rows(found, recipe, method))
            if not made and (recipe, method) not in PAPER:
                rows.append([RECIPES[recipe], attention_name(method), *[NONE] * (len(TASKS) + 2)])
            for row in made:
                ours.append((len(rows), row))
                rows.append([RECIPES[recipe], attention_name(method), row.threat, *row.cells()])
            if (recipe, method) in PAPER:
                rows.append(
                    [RECIPES[recipe], attention_name(method), "paper", *PAPER[recipe, method]]
                )
        if _comparable(found, recipe):
            best |= set(_best(ours))
    head = ["attack", "attention", "threat", *(find_task(task).title for task in TASKS), "Avg."]
    return Table(head, rows, " ".join([caption, *circumstances(found)]), frozenset(best))


def numbers_table(found: Sequence[Description]) -> Table:
    """All summary statistics of every attack, ordered by task and recipe."""
    ordered = sorted(found, key=_order)
    shown = [shown_numbers(each["summary"]) for each in ordered]
    names = list(dict.fromkeys(name for own in shown for name in own))
    rows = [
        [
            find_task(each["task"]).title,
            RECIPES[each["identity"]["recipe"]],
            attention_name(each["method"]),
            each["identity"]["threat"],
            *(own.get(name, NONE) for name in names),
        ]
        for each, own in zip(ordered, shown, strict=True)
    ]
    return Table(["task", "attack", "attention", "threat", *names], rows)


def methods_of(found: Sequence[Description]) -> list[str]:
    """The attention methods of the table, and further ones that were attacked."""
    return list(dict.fromkeys([*METHODS, *(each["method"] for each in found)]))


def _rows(found: Sequence[Description], recipe: Recipe, method: str) -> Iterator[_Row]:
    of_method = [
        each for each in found if each["method"] == method and each["identity"]["recipe"] == recipe
    ]
    present = {each["identity"]["threat"] for each in of_method}
    for threat in (known for known in THREATS if known in present):
        shares: dict[str, list[float]] = {}
        for each in of_method:
            share = each["summary"]["failed_share"]
            if each["identity"]["threat"] == threat and share is not None:
                shares.setdefault(each["task"], []).append(share)
        yield _Row(recipe, method, threat, shares)


def _comparable(found: Sequence[Description], recipe: Recipe) -> bool:
    """Whether all models of a task were attacked with the same settings."""
    circumstances: dict[str, set[str]] = {}
    for each in found:
        identity = each["identity"]
        if identity["recipe"] == recipe:
            shared = [each["examples"], *(identity[name] for name in SHARED)]
            circumstances.setdefault(each["task"], set()).add(json.dumps(shared))
    return all(len(ways) == 1 for ways in circumstances.values())


def _best(rows: Sequence[tuple[int, _Row]]) -> Iterator[tuple[int, int]]:
    """Places of the mean of each column that is clearly the largest."""
    for column in range(len(TASKS) + 1):
        values = {place: row.by_seed()[column] for place, row in rows}
        yield from ((place, 3 + column) for place in best_places(values))


def circumstances(found: Sequence[Description]) -> Iterator[str]:
    """Methods, resources, settings and machines of the attacks, in sentences."""
    if note := preset_note(each["method"] for each in found):
        yield note
    users: dict[tuple[str, str], set[Recipe]] = {}
    for identity in (each["identity"] for each in found):
        for resource in resource_lines(identity):
            users.setdefault(resource, set()).add(identity["recipe"])
    for (kind, name), recipes in users.items():
        whose = ", ".join(title for recipe, title in RECIPES.items() if recipe in recipes)
        yield f"{whose}: {kind}: {name}."
    if not all(_comparable(found, recipe) for recipe in RECIPES):
        yield "Attacks that differ in examples or resources are not compared: none is the best."
    if any(r["substituted"] for each in found for r in each["identity"]["resources"].values()):
        yield SUBSTITUTED
    if found:
        yield _when_and_where(found)


def _when_and_where(found: Sequence[Description]) -> str:
    environments = [each["environment"] for each in found]
    seeds = sorted({each["trained_with_seed"] for each in found})
    days = sorted({str(each.get("started", ""))[:10] for each in environments})
    packages = ("torch", "transformers", "textattack")
    return (
        f"Examples: {_listed({each['examples'] for each in found})}. Models: "
        f"{_listed({Path(each['base']).name for each in found})}, seeds {_listed(seeds)}. "
        f"{' to '.join(dict.fromkeys([days[0], days[-1]]))}, "
        f"{_listed(map(machine_of, environments))}; "
        f"{_listed(versions_of(each, packages) for each in environments)}."
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _order(each: Description) -> tuple[int, ...]:
    identity, methods = each["identity"], [*METHODS, each["method"]]
    tasks = [*TASKS, each["task"]]
    return (
        tasks.index(each["task"]),
        list(RECIPES).index(identity["recipe"]),
        methods.index(each["method"]),
        list(THREATS).index(identity["threat"]),
    )


def write_attack_table(found: Sequence[Description], folder: Path, command: str) -> Path:
    """Writes the table as Markdown, LaTeX and CSV, and all attacks as JSON; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", {"command": command, "attacks": list(found)})
    return write_table(attack_table(found), attacks_page(found, "Failed attacks", command), folder)


def attacks_page(found: Sequence[Description], title: str, command: str) -> str:
    """The table in Markdown, with the command and all summary statistics of each attack."""
    parts = [f"## {title}", f"```console\n{command}\n```", CAPTION]
    parts += [attack_table(found).markdown().rstrip()]
    if found:
        known = "\n".join(f"- {line}" for line in circumstances(found))
        parts += [known, "All numbers:", numbers_table(found).markdown()]
    return "\n\n".join(parts)
