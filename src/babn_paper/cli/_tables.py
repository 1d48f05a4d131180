"""Makes the paper's tables from the command line, and one report of all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from babn.cli._errors import CommandError
from babn.cli._terminal import Bars, plain_table
from babn.errors import ConfigError, MissingExtraError, one_line
from babn_paper.attacks.attack_run import attack_many
from babn_paper.attacks.attack_table import TASKS, attack_table, descriptions, write_attack_table
from babn_paper.attacks.plan import RECIPES, Recipe
from babn_paper.attacks.textattack_attacker import check_installed
from babn_paper.attacks.tiny_resources import write_tiny_resources
from babn_paper.cli._grids import (
    question_numbers,
    raise_if_failed,
    run_figure,
    run_grids,
    run_missing,
)
from babn_paper.cli._terminal import make_console
from babn_paper.experiments.grids import Grid, quick, select_tasks, table_grid
from babn_paper.experiments.records import collect
from babn_paper.experiments.result_pages import (
    Section,
    circumstances,
    main_table,
    write_report,
)
from babn_paper.experiments.run_folder import invoked_command

ATTACKS, FIGURE = "table3", "figure3"

TRAINED = {ATTACKS: "table1", FIGURE: "table5"}
"""The table that trains the models of a table or figure without runs of its own."""

TITLES = {
    "table1": "Table 1: language understanding",
    "table2": "Table 2: generalisation across domains",
    ATTACKS: "Table 3: attacks by changed words",
    "table4": "Table 4: translation",
    "table5": "Table 5: questions about images",
    "ablation": "Ablation: the upward path in shape and scale",
    "efficiency": "Parameters and time of a step",
    FIGURE: "Figure 3: attention to words and to an image",
}
"""The tables in the order in which they are made; figure 3 uses a model of table 5."""

NAME = "all"
"""Argument that stands for all tables, and name of the report's folder."""

QUICK_EXAMPLES = 4
"""Number of attacked examples with `--quick`."""


@dataclass(frozen=True)
class Request:
    """Options of the tables to make.

    Attributes:
        seeds: Runs of each cell.
        jobs: Number of parallel runs.
        overrides: Fields that are overridden in all runs.
        out: Folder for the runs.
        quick: Whether to use small models and built-in data.
        show: Whether to collect existing results only.
        examples: Number of examples to attack.
        resources: Folder with the resources of attacks; with `quick` tiny ones are made by default.
    """

    seeds: int
    jobs: int
    overrides: Mapping[str, Any]
    out: Path
    quick: bool
    show: bool
    examples: int
    resources: str | None

    @property
    def attack_settings(self) -> tuple[int, str | None]:
        """Number of examples to attack and folder of resources; makes tiny ones for `quick`."""
        if not self.quick or self.resources is not None:
            return self.examples, self.resources
        folder = write_tiny_resources(self.under / "attack_resources")
        return min(self.examples, QUICK_EXAMPLES), str(folder)

    @property
    def under(self) -> Path:
        """The folder of the tables."""
        return self.out / "quick" if self.quick else self.out

    def grid(self, table: str, only: str | None = None) -> Grid:
        """The grid of runs that a table or figure needs."""
        if table == ATTACKS and only is None:
            only = ",".join(TASKS)
        found = select_tasks(table_grid(TRAINED.get(table, table), range(self.seeds)), only)
        return quick(found) if self.quick else found


def make_table(table: str, request: Request, only: str | None = None) -> None:
    """Completes the missing runs of a table, prints it and writes it."""
    if table == FIGURE:
        run_figure(request.grid(table), request.overrides, request.under, question_numbers(only))
    elif table == ATTACKS:
        make_attack_table(request, request.grid(table, only))
    else:
        grid = request.grid(table, only)
        grids = {grid.name: grid}
        run_grids(grids, request.overrides, request.under, jobs=request.jobs, show=request.show)


def make_attack_table(request: Request, grid: Grid) -> None:
    """Trains the missing models of a grid, attacks each by every recipe and writes the table."""
    console = make_console()
    jobs = grid.jobs(request.overrides, request.under)
    runs, out = [job.folder for job in jobs], request.under / ATTACKS
    if request.show:
        print_attack_table(console, [run for run in runs if run.is_dir()], out)
        return
    check_installed()
    # The table of the grid is not written, since these are only some of its tasks.
    raise_if_failed(run_missing(console, jobs, request.jobs), len(runs))
    examples, resources = request.attack_settings
    settings = {"examples": examples, "resources": resources}
    attack_and_tabulate(console, runs, list(RECIPES), request.jobs, out, **settings)


def attack_and_tabulate(
    console: Console,
    runs: Sequence[Path],
    recipes: Sequence[Recipe],
    jobs: int,
    out: Path,
    **settings: Any,
) -> None:
    """Attacks models by recipes, prints and writes the table, and raises if an attack failed."""
    with Bars(console) as bars:
        failures = attack_many(runs, recipes, jobs, bars, **settings)
    print_attack_table(console, runs, out)
    if failures:
        count = len(runs) * len(recipes)
        raise CommandError(f"{len(failures)} of {count} attacks failed. {failures[0]}")


def print_attack_table(console: Console, runs: Sequence[Path], out: Path) -> None:
    """Prints and writes the table of attacks on runs."""
    found = descriptions(runs)
    page = write_attack_table(found, out, invoked_command())
    table = attack_table(found)
    console.print(plain_table(table.columns, table.rows, texts=3))
    console.print(f"{page}, with LaTeX, CSV and JSON beside it")


def make_all(request: Request, only: str | None) -> None:
    """Makes every table and the report; a table that fails does not stop the others."""
    tables = _parse_only(only)
    for table in tables:  # validates the overrides before any run starts
        request.grid(table).jobs(request.overrides, request.under)
    folder = request.under / NAME
    console = make_console()
    failures: dict[str, str] = {}
    for table in tables:
        reason = "" if request.show else _skipped(table)
        if not reason and not (request.show and table == FIGURE):
            reason = _try(table, request, console)
            failures |= {table: reason} if reason else {}
        sections = [_section(each, request, failures) for each in tables]
        # Written after every table, so that an interrupted command leaves a report.
        page = write_report(sections, folder, invoked_command(), request.quick)
    for section in sections:
        console.print(f"{section.title}: {section.state}")
    console.print(str(page))
    if failures:
        reasons = " ".join(f"{table}: {reason}" for table, reason in failures.items())
        raise CommandError(f"{len(failures)} of {len(tables)} tables are incomplete. {reasons}")


def _parse_only(only: str | None) -> list[str]:
    if only is None:
        return list(TITLES)
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in TITLES]:
        raise ConfigError(f"--only {unknown[0]} is not a table. Choose from {', '.join(TITLES)}.")
    return [table for table in TITLES if table in names]


def _skipped(table: str) -> str:
    """Why a table is skipped; empty if it is not."""
    if table != ATTACKS:
        return ""
    try:
        check_installed()
    except MissingExtraError as error:
        return f"TextAttack is not installed. {one_line(error)}"
    return ""


def _try(table: str, request: Request, console: Console) -> str:
    """Makes a table and returns its error message, or an empty string."""
    console.rule(Text(TITLES[table]), align="left")
    start = time.monotonic()
    try:
        make_table(table, request)
    except Exception as error:
        reason = one_line(error)
        console.print(Text(f"{table}: {reason}", style="red"))
        return reason
    console.print(f"{table}: {time.monotonic() - start:.0f} s")
    return ""


def _section(table: str, request: Request, failures: dict[str, str]) -> Section:
    """The section of a table in its current state."""
    describe: Callable[[str, Request], Section] = {
        ATTACKS: _attack_section,
        FIGURE: _figure_section,
    }.get(table, _grid_section)
    section = describe(table, request)
    return section.failed(failures[table]) if table in failures else section


def _grid_section(table: str, request: Request) -> Section:
    records = collect(request.grid(table).jobs(request.overrides, request.under))
    runs = [record for record in records if record.experiment["method"] != "ensemble"]
    done = sum(bool(record.results) for record in runs)
    state = f"{done} of {len(runs)} runs"
    notes = circumstances(records)
    return Section(TITLES[table], _command(table, request), state, main_table(records), notes)


def _attack_section(table: str, request: Request) -> Section:
    runs = [job.folder for job in request.grid(table).jobs(request.overrides, request.under)]
    reason = _skipped(table)
    state = f"not run: {reason}" if reason else "attacks on the models of table 1"
    command = _command(table, request) + ("" if request.resources else " --resources DIR")
    found = descriptions([run for run in runs if run.is_dir()])
    return Section(TITLES[table], command, state, attack_table(found))


def _figure_section(table: str, request: Request) -> Section:
    pictures = sorted((request.under / FIGURE).glob("*.png"), reverse=True)
    state = f"{len(pictures)} pictures" if pictures else "not run"
    return Section(TITLES[table], _command(table, request), state, pictures=pictures)


def _command(table: str, request: Request) -> str:
    """The command that makes one table alone."""
    words = ["babn", "reproduce", table, *(["--quick"] if request.quick else [])]
    if request.out != Path("runs"):
        words += ["--out", str(request.out)]
    return " ".join([*words, "--seeds", str(request.seeds)])
