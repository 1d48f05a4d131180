"""`babn reproduce`."""

import os
from pathlib import Path
from typing import Annotated


def reproduce(
    table: str,
    *,
    seeds: int = 5,
    jobs: int | None = None,
    only: str | None = None,
    data: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer needs a list)
    out: Path = Path("runs"),
    quick: bool = False,
    show: bool = False,
    examples: int = 1000,
    resources: Annotated[str | None, "FOLDER"] = None,
) -> None:
    """Reproduce one of the paper's tables, or all of them, beside the paper's values.

    Tables: table1 (language understanding), table2 (generalisation across domains), table3
    (TextAttack attacks on the models of table1), table4 (translation), table5 (visual question
    answering), ablation (of rho and sigma), efficiency (parameters and seconds per step). figure3
    draws attention maps of visual questions. all runs everything and writes one report. Finished
    runs are reused and interrupted ones resume.

    Args:
        table: Name of the table.
        seeds: Runs of each cell, with seeds counted from 0.
        jobs: Number of parallel runs; by default 1, or with --quick one per core, at most 4.
        only: Tasks, separated by commas; for all, tables; for figure3, numbers of test questions.
            By default every task and table, and the most and the least confident answer.
        data: Source of the data of all runs: builtin, hub or a folder.
        set_: Overrides a field in all runs, as NAME=VALUE; can be repeated.
        out: Folder for the runs.
        quick: Smoke test: small models on built-in data, at most two seeds, or one for all.
        show: Collect existing results only.
        examples: For table3, the number of examples to attack.
        resources: For table3, the folder of resources, as in `babn attack`; with --quick tiny
            resources are made by default.
    """
    from babn.cli._errors import CommandError
    from babn.validation import check_count
    from babn_paper.cli._tables import NAME, TITLES, Request, make_all, make_table
    from babn_paper.experiments.config_files import parse_overrides

    if table not in (*TITLES, NAME):
        known = f"Tables: {', '.join([*TITLES, NAME])}."
        raise CommandError(f"table {table!r} is not known. {known}")
    if quick:
        seeds = min(seeds, 1 if table == NAME else 2)
    if jobs is None:  # small models are fastest on one thread each
        jobs = min(os.cpu_count() or 1, 4) if quick else 1
    check_count("jobs", jobs)
    overrides = parse_overrides(set_) | ({} if data is None else {"data": data})
    request = Request(seeds, jobs, overrides, out, quick, show, examples, resources)
    if table == NAME:
        make_all(request, only)
    else:
        make_table(table, request, only)
