"""Runs grids of experiments from the command line."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from babn.cli._errors import CommandError
from babn.cli._terminal import Bars
from babn_paper.cli._terminal import fitted, make_console
from babn_paper.experiments.engines import Engine, Job
from babn_paper.experiments.grids import Grid
from babn_paper.experiments.jobs import RETRIES, run_all
from babn_paper.experiments.records import collect
from babn_paper.experiments.result_pages import main_table, write_results


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
    """Completes the missing runs of several grids and writes the tables of each.

    Args:
        grids: The grids, by their names on the command line.
        overrides: Fields that are overridden in all runs.
        under: Folder for the runs.
        jobs: Number of parallel runs.
        show: Whether to collect existing results only.
        engine: Executes the runs; by default on this machine.
        retries: How often a run is restarted after its process has died.
    """
    console = make_console()
    wanted = {word: grid.jobs(overrides, under) for word, grid in grids.items()}
    everything = [job for of_grid in wanted.values() for job in of_grid]
    failed = {} if show else run_missing(console, everything, jobs, engine, retries)
    for word, grid in grids.items():
        others = set(grids) - {word}
        command = " ".join(["babn", *(each for each in sys.argv[1:] if each not in others)])
        records = collect(wanted[word])
        page = write_results(records, under / grid.name, grid.name, command)
        console.print(fitted(main_table(records), console.width))
        console.print(f"{page}, with LaTeX, CSV and JSON beside it")
    raise_if_failed(failed, len(everything))


def run_missing(
    console: Console,
    wanted: Sequence[Job],
    jobs: int,
    engine: Engine | None = None,
    retries: int = RETRIES,
) -> dict[Path, str]:
    """Completes unfinished runs and returns the errors of failed ones by folder."""
    with Bars(console) as bars:
        return run_all(wanted, jobs, bars, engine=engine, retries=retries)


def raise_if_failed(failed: Mapping[Path, str], count: int) -> None:
    """Ends the command with an error if runs have failed."""
    if failed:
        lines = [f"{folder}: {error}" for folder, error in failed.items()]
        raise CommandError(f"{len(failed)} of {count} runs failed. {' '.join(lines[:3])}")


def question_numbers(only: str | None) -> list[int]:
    """Parses comma-separated numbers of test questions."""
    parts = [part.strip() for part in (only or "").split(",") if part.strip()]
    if bad := next((part for part in parts if not part.isdigit()), None):
        raise CommandError(f"--only {bad} is not the number of a test question. Give numbers.")
    return [int(part) for part in parts]


def run_figure(
    grid: Grid, overrides: Mapping[str, Any], under: Path, numbers: Sequence[int]
) -> None:
    """Draws Figure 3 from the first BABN run of a grid, which is done first if it is missing."""
    from babn_paper.visual.question import QuestionSettings, figure3, load_run

    console = make_console()
    job = next(job for job in grid.jobs(overrides, under) if job.experiment.method == "belief")
    raise_if_failed(run_missing(console, [job], 1), 1)
    settings = QuestionSettings(samples=job.experiment.samples)
    figure3(
        load_run(job.folder),
        under / "figure3",
        settings,
        numbers,
        console.print,
    )
