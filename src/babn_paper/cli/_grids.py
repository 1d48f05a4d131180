"""Running many experiments from the command line."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from babn.cli._errors import CommandError
from babn.cli._progress import Bars
from babn_paper.cli._terminal_tables import fitted
from babn_paper.experiments.engines import Engine
from babn_paper.experiments.grids import Grid
from babn_paper.experiments.jobs import RETRIES, Job, run_all
from babn_paper.experiments.records import collect
from babn_paper.experiments.results_page import main_table, write_results


def run_grids(
    grids: Mapping[str, Grid],
    overrides: Mapping[str, Any],
    under: Path,
    *,
    jobs: int,
    show: bool,
    engine: Engine | None = None,
    retries: int = RETRIES,
) -> None:
    """Runs what is missing of several grids together, and writes the tables of each.

    Args:
        grids: The grids, by what the command calls them.
        overrides: Fields of all runs that are replaced.
        under: Folder for the runs.
        jobs: How many runs at a time.
        show: Whether only to collect what has been run.
        engine: Where they are run; by default on this machine.
        retries: How often a run is started again whose process has died.
    """
    console = Console(highlight=False)
    wanted = {word: grid.jobs(overrides, under) for word, grid in grids.items()}
    everything = [job for own in wanted.values() for job in own]
    check_jobs(jobs)
    failed = {} if show else run_missing(console, everything, jobs, engine, retries)
    for word, grid in grids.items():
        others = set(grids) - {word}
        command = " ".join(["babn", *(each for each in sys.argv[1:] if each not in others)])
        records = collect(wanted[word])
        page = write_results(records, under / grid.name, grid.name, command)
        console.print(fitted(main_table(records), console.width))
        console.print(f"{page}, with LaTeX, CSV and JSON beside it", markup=False, soft_wrap=True)
    refuse(failed, len(everything))


def check_jobs(jobs: int) -> None:
    """Refuses a number of jobs that cannot be."""
    if jobs < 1:
        raise CommandError(f"--jobs {jobs} is not possible. Give a whole number from 1 on.")


def run_missing(
    console: Console,
    wanted: Sequence[Job],
    jobs: int,
    engine: Engine | None = None,
    retries: int = RETRIES,
) -> dict[Path, str]:
    """Runs what has not been run yet, and returns what went wrong where."""
    with Bars(console) as bars:
        return run_all(wanted, jobs, bars, engine=engine, retries=retries)


def refuse(failed: Mapping[Path, str], wanted: int) -> None:
    """Ends the command if runs have failed."""
    if failed:
        lines = [f"{folder}: {error}" for folder, error in failed.items()]
        raise CommandError(f"{len(failed)} of {wanted} runs failed. {' '.join(lines[:3])}")


def question_numbers(only: str | None) -> list[int]:
    """Numbers of test questions, as they stand in an option."""
    parts = [part.strip() for part in (only or "").split(",") if part.strip()]
    if strange := next((part for part in parts if not part.isdigit()), None):
        raise CommandError(f"--only {strange} is not the number of a test question. Give some.")
    return [int(part) for part in parts]


def run_figure(
    grid: Grid, overrides: Mapping[str, Any], under: Path, numbers: Sequence[int]
) -> None:
    """Draws Figure 3 from the first BABN run of a grid, which is run if it is not there."""
    from babn_paper.visual.question import Asking, load_run
    from babn_paper.visual.question_figure import figure3

    console = Console(highlight=False)
    job = next(job for job in grid.jobs(overrides, under) if job.experiment.rule == "belief")
    refuse(run_missing(console, [job], 1), 1)
    asking = Asking(samples=job.experiment.samples)
    figure3(
        load_run(job.folder),
        under / "figure3",
        asking,
        numbers,
        lambda line: console.print(line, markup=False, soft_wrap=True),
    )
