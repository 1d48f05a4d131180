"""`babn reproduce`."""

import os
from pathlib import Path


def reproduce(
    table: str,
    *,
    seeds: int = 5,
    jobs: int | None = None,
    only: str | None = None,
    data: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer asks for a list)
    out: Path = Path("runs"),
    quick: bool = False,
    show: bool = False,
    examples: int = 1000,
    resources: str | None = None,
) -> None:
    """Run the cells of one of the paper's tables, or all, and set ours beside the paper's numbers.

    Tables: table1 (language understanding), table2 (generalisation across domains), table3
    (attacks on the models of table1, by TextAttack), table4 (translation), table5 (visual question
    answering), ablation (of rho and sigma), efficiency (parameters and seconds per step); figure3
    draws attention for some visual questions; all makes every one of them and one report. What is
    done is left alone and what was interrupted goes on.

    Args:
        table: Name of the table.
        seeds: Runs of each cell, with seeds from 0 on.
        jobs: How many runs at a time; by default 1, or with --quick one for each core, up to four.
        only: Tasks to run, separated by commas, or tables in case of all; by default every one. For
            figure3, numbers of test questions; by default the surest one and the least sure.
        data: Where to read the data of all runs, builtin, hub or a folder.
        set_: A field to override in all runs as NAME=VALUE; may be repeated.
        out: Folder for the runs.
        quick: Small models on built-in data, to see that everything works; two seeds, or one
            in case of all.
        show: Only collect what has been run.
        examples: For table3, how many examples are attacked.
        resources: For table3, a folder with what attacks need, as `babn attack` takes it; with
            --quick tiny ones are made by default.
    """
    from babn_paper.cli._all_tables import NAME, make_all
    from babn_paper.cli._tables import Request, make_table
    from babn_paper.experiments.config_files import parse_overrides

    if quick:
        seeds = min(seeds, 1 if table == NAME else 2)
    if jobs is None:  # small models are fastest on one thread each
        jobs = min(os.cpu_count() or 1, 4) if quick else 1
    overrides = parse_overrides(set_) | ({} if data is None else {"data": data})
    request = Request(seeds, jobs, overrides, out, quick, show, examples, resources)
    if table == NAME:
        make_all(request, only)
    else:
        make_table(table, request, only)
