"""Many attacks from the command line."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn.cli._errors import CommandError
from babn.cli._progress import Bars
from babn_paper.attacks.many_attacks import attack_many, write_attack_table
from babn_paper.attacks.textattack_import import check_installed
from babn_paper.attacks.plan import RECIPES, Recipe
from babn_paper.attacks.attack_table import attack_table, descriptions
from babn_paper.cli._grids import check_jobs, refuse, run_missing
from babn_paper.experiments.grids import Grid


def attack_and_tabulate(
    console: Console,
    runs: Sequence[Path],
    recipes: Sequence[Recipe],
    jobs: int,
    out: Path,
    **settings: Any,
) -> None:
    """Attacks models by recipes, shows and writes their table, and says what failed."""
    with Bars(console) as bars:
        failures = attack_many(runs, recipes, jobs, bars, **settings)
    tabulate(console, runs, out)
    if failures:
        wanted = len(runs) * len(recipes)
        raise CommandError(f"{len(failures)} of {wanted} attacks failed. {failures[0]}")


def reproduce_attacks(
    grid: Grid,
    overrides: Mapping[str, Any],
    under: Path,
    jobs: int,
    show: bool,
    find_settings: Callable[[], tuple[int, str | None]],
) -> None:
    """Trains what is missing of a grid, attacks every model by every recipe, and writes a table.

    Args:
        grid: The models.
        overrides: Fields of all runs that are replaced.
        under: Folder of the tables.
        jobs: Runs, or attacks, at a time.
        show: Whether only to collect what there is.
        find_settings: How many examples are attacked, and the folder of resources.
    """
    console = Console(highlight=False)
    runs = [job.folder for job in grid.jobs(overrides, under)]
    if show:
        tabulate(console, [run for run in runs if run.is_dir()], under / "table3")
        return
    check_installed()
    check_jobs(jobs)
    # Trained without writing the table of the grid: these are only some of its tasks.
    refuse(run_missing(console, grid.jobs(overrides, under), jobs), len(runs))
    examples, resources = find_settings()
    settings = {"examples": examples, "resources": resources}
    attack_and_tabulate(console, runs, list(RECIPES), jobs, under / "table3", **settings)


def tabulate(console: Console, runs: Sequence[Path], out: Path) -> None:
    """Shows and writes the table of attacks on runs."""
    found = descriptions(runs)
    page = write_attack_table(found, out, " ".join(["babn", *sys.argv[1:]]))
    table = attack_table(found)
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(table.columns):
        made.add_column(name, justify="left" if i < 3 else "right", no_wrap=i < 3)
    for row in table.rows:
        made.add_row(*row)
    console.print(made)
    console.print(f"{page}, with LaTeX, CSV and JSON beside it", markup=False, soft_wrap=True)
