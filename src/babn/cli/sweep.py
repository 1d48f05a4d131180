"""`babn sweep`."""

from pathlib import Path


def sweep(
    grid: str,
    *,
    jobs: int = 1,
    data: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer asks for a list)
    out: Path = Path("runs"),
    show: bool = False,
) -> None:
    """Run the experiments of a grid, several side by side, and write one table of them.

    What is done is left alone and what was interrupted goes on, so the same command finishes a
    sweep that stopped. The table goes to RESULTS.md beside the runs, with LaTeX, CSV and JSON.

    Args:
        grid: A TOML file with tasks, rules, fields and lists of values to try; or the name of a
            built-in one, glue-bert or glue-roberta.
        jobs: How many runs at a time.
        data: Where to read the data of all runs, builtin, hub or a folder.
        set_: A field to override in all runs as NAME=VALUE; may be repeated.
        out: Folder for the runs.
        show: Only collect what has been run.
    """
    from babn.cli._grids import run_grid
    from babn.experiments.config_files import parse_overrides
    from babn.experiments.grids import find_grid, read_grid

    overrides = parse_overrides(set_) | ({} if data is None else {"data": data})
    run_grid(read_grid(find_grid(grid)), overrides, out, jobs=jobs, show=show)
