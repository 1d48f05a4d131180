"""Makes one of the paper's tables from the command line."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from babn.cli._errors import CommandError
from babn.cli._progress import Bars
from babn.cli._rich_tables import plain_table
from babn_paper.attacks.attack_run import attack_many
from babn_paper.attacks.attack_table import TASKS, attack_table, descriptions, write_attack_table
from babn_paper.attacks.plan import RECIPES, Recipe
from babn_paper.attacks.textattack_attacker import check_installed
from babn_paper.attacks.tiny_resources import write_tiny_resources
from babn_paper.cli._grids import (
    check_jobs,
    question_numbers,
    raise_if_failed,
    run_figure,
    run_grids,
    run_missing,
)
from babn_paper.experiments.grids import Grid, quick, select_tasks, table_grid

ATTACKS, FIGURE = "table3", "figure3"

TRAINED = {ATTACKS: "table1", FIGURE: "table5"}
"""Tables whose models are used by a table or figure that trains none."""

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
    """Does the missing runs of a table, prints it and writes it."""
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
    console = Console(highlight=False)
    jobs = grid.jobs(request.overrides, request.under)
    runs, out = [job.folder for job in jobs], request.under / ATTACKS
    if request.show:
        print_attack_table(console, [run for run in runs if run.is_dir()], out)
        return
    check_installed()
    check_jobs(request.jobs)
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
    page = write_attack_table(found, out, " ".join(["babn", *sys.argv[1:]]))
    table = attack_table(found)
    console.print(plain_table(table.columns, table.rows, texts=3))
    console.print(f"{page}, with LaTeX, CSV and JSON beside it", markup=False, soft_wrap=True)
