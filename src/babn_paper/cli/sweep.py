"""`babn sweep`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from babn_paper.experiments.grids import Grid


def sweep(
    grids: list[str],
    *,
    jobs: int = 1,
    engine: str = "local",
    cpus: int | None = None,
    gpus: float | None = None,
    slurm: list[str] = [],  # noqa: B006
    retries: int = 2,
    data: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer asks for a list)
    out: Path = Path("runs"),
    show: bool = False,
) -> None:
    """Run the experiments of grids, several side by side, and write one table of each grid.

    What is done is left alone and what was interrupted goes on, so the same command finishes a
    sweep that stopped. A run whose process dies is started again and goes on from its checkpoint. A
    run that another process works on is left to it and waited for. Several grids share the jobs,
    so that none waits for the last run of another. A table goes to RESULTS.md beside the runs, with
    LaTeX, CSV and JSON.

    Args:
        grids: TOML files with tasks, rules, fields and lists of values to try; or names of built-in
            ones, glue-bert or glue-roberta.
        jobs: How many runs at a time.
        engine: Where to run them: local, ray (the cluster that RAY_ADDRESS names, or this machine)
            or slurm (one job for each run).
        cpus: Cores for each run; by default a fair share, with slurm one.
        gpus: GPUs for each run, from 0 to 1; by default a fair share, with slurm none.
        slurm: A parameter of Slurm as NAME=VALUE, such as partition=gpu or time=240 (minutes); may
            be repeated.
        retries: How often a run is started again whose process has died.
        data: Where to read the data of all runs, builtin, hub or a folder.
        set_: A field to override in all runs as NAME=VALUE; may be repeated.
        out: Folder for the runs.
        show: Only collect what has been run.
    """
    from babn.validation import check_at_least
    from babn_paper.cli._grids import check_jobs, run_grids
    from babn_paper.experiments.config_files import parse_overrides
    from babn_paper.experiments.engines import make_engine
    from babn_paper.experiments.engines import Resources
    from babn_paper.experiments.grids import find_grid, read_grid

    found = {name: read_grid(find_grid(name)) for name in grids}
    check_names(found)
    overrides = parse_overrides(set_) | ({} if data is None else {"data": data})
    check_jobs(jobs)
    check_at_least("retries", retries, 0)
    resources = Resources(jobs=jobs, cpus=cpus, gpus=gpus)
    logs = out / next(iter(found.values())).name / "jobs"
    made = make_engine("local" if show else engine, resources, logs, named(slurm))
    try:
        run_grids(found, overrides, out, jobs=jobs, show=show, engine=made, retries=retries)
    finally:
        made.close()


def check_names(grids: "Mapping[str, Grid]") -> None:
    """Refuses grids whose results would go to the same folder."""
    from babn.cli._errors import CommandError

    by_name: dict[str, str] = {}
    for word, grid in grids.items():
        other = by_name.setdefault(grid.name, word)
        if other != word:
            raise CommandError(f"{other} and {word} have the same name. Rename one of the files.")


def named(values: list[str]) -> dict[str, str]:
    """Texts NAME=VALUE as names and values."""
    from babn.cli._errors import CommandError

    pairs = [value.partition("=") for value in values]
    for name, sign, value in pairs:
        if not name or not sign or not value:
            raise CommandError(f"--slurm {name}{sign}{value} is not possible. Give NAME=VALUE.")
    return {name: value for name, _, value in pairs}
