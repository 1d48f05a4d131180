"""`babn reproduce`."""

from pathlib import Path

ATTACKS, FIGURE = "table3", "figure3"


def reproduce(
    table: str,
    *,
    seeds: int = 5,
    jobs: int = 1,
    only: str | None = None,
    data: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer asks for a list)
    out: Path = Path("runs"),
    quick: bool = False,
    show: bool = False,
    examples: int = 1000,
    resources: str | None = None,
) -> None:
    """Run the cells of one of the paper's tables, and set ours beside the paper's numbers.

    Tables: table1 (language understanding), table2 (generalisation across domains), table3
    (attacks on the models of table1, by TextAttack), table4 (translation), table5 (visual question
    answering), ablation (of rho and sigma), efficiency (parameters and seconds per step); figure3
    draws attention for two visual questions. What is done is left alone and what was interrupted
    goes on.

    Args:
        table: Name of the table.
        seeds: Runs of each cell, with seeds from 0 on.
        jobs: How many runs at a time.
        only: Tasks to run, separated by commas; by default all.
        data: Where to read the data of all runs, builtin, hub or a folder.
        set_: A field to override in all runs as NAME=VALUE; may be repeated.
        out: Folder for the runs.
        quick: Small models on built-in data, to see that everything works; two seeds.
        show: Only collect what has been run.
        examples: For table3, how many examples are attacked.
        resources: For table3, a folder with what attacks need, as `babn attack` takes it.
    """
    from babn.attacks.table import TASKS
    from babn.cli._attacks import reproduce_attacks
    from babn.cli._grids import run_figure, run_grid
    from babn.experiments.config_files import parse_overrides
    from babn.experiments.grids import chosen, table_grid
    from babn.experiments.quick import quick as made_quick

    if table == ATTACKS and only is None:
        only = ",".join(TASKS)
    trained = {ATTACKS: "table1", FIGURE: "table5"}.get(table, table)
    grid = chosen(table_grid(trained, range(min(seeds, 2) if quick else seeds)), only)
    if quick:
        grid, out = made_quick(grid), out / "quick"
    overrides = parse_overrides(set_) | ({} if data is None else {"data": data})
    if table == ATTACKS:
        reproduce_attacks(grid, overrides, out, jobs, show, examples, resources)
    elif table == FIGURE:
        run_figure(grid, overrides, out)
    else:
        run_grid(grid, overrides, out, jobs=jobs, show=show)
