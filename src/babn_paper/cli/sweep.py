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
    set_: list[str] = [],  # noqa: B006  (typer needs a list)
    out: Path = Path("runs"),
    show: bool = False,
) -> None:
    """Run grids of experiments in parallel, and write a table of results for each grid.

    Finished runs are reused and interrupted ones resume: repeat the command to continue a sweep. A
    run whose process dies restarts from its checkpoint. A sweep waits for runs that another process
    has locked, so several sweeps can share a folder. RESULTS.md goes to the folder of the grid's
    runs, with LaTeX, CSV and JSON files.

    Args:
        grids: TOML files with tasks, attention methods, fields and lists of values to try; or
            built-in grids, glue-bert or glue-roberta.
        jobs: Number of parallel runs.
        engine: local, ray (the cluster at RAY_ADDRESS, or this machine) or slurm (one job for each
            run).
        cpus: Cores for each run; by default an equal share, with slurm one.
        gpus: GPUs for each run, from 0 to 1; by default an equal share, with slurm none.
        slurm: A Slurm parameter as NAME=VALUE, such as partition=gpu or time=240 (minutes); can be
            repeated.
        retries: How often a run is restarted after its process has died.
        data: Source of the data of all runs: builtin, hub or a folder.
        set_: Overrides a field in all runs, as NAME=VALUE; can be repeated.
        out: Folder for the runs.
        show: Collect existing results only.
    """
    from babn.validation import check_at_least
    from babn_paper.cli._grids import run_grids
    from babn_paper.experiments.config_files import parse_overrides, split_settings
    from babn_paper.experiments.engines import Resources, make_engine
    from babn_paper.experiments.grids import find_grid, read_grid

    found = {name: read_grid(find_grid(name)) for name in grids}
    check_names(found)
    overrides = parse_overrides(set_) | ({} if data is None else {"data": data})
    check_at_least("retries", retries, 0)
    resources = Resources(jobs=jobs, cpus=cpus, gpus=gpus)
    logs = out / next(iter(found.values())).name / "jobs"
    options = dict(split_settings("--slurm", slurm))
    made = make_engine("local" if show else engine, resources, logs, options)
    try:
        run_grids(found, overrides, out, jobs=jobs, show=show, engine=made, retries=retries)
    finally:
        made.close()


def check_names(grids: "Mapping[str, Grid]") -> None:
    """Raises if the results of two grids would go to the same folder."""
    from babn.cli._errors import CommandError

    by_name: dict[str, str] = {}
    for word, grid in grids.items():
        other = by_name.setdefault(grid.name, word)
        if other != word:
            raise CommandError(f"{other} and {word} have the same name. Rename one of the files.")
