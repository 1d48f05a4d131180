"""Makes every table of the paper and one report of them."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from babn.cli._errors import CommandError
from babn.errors import ConfigError, MissingExtraError, one_line
from babn.evaluation.html_pages import check_target
from babn_paper.attacks.attack_table import attack_table, descriptions
from babn_paper.attacks.textattack_attacker import check_installed
from babn_paper.cli._grids import check_jobs
from babn_paper.cli._tables import ATTACKS, FIGURE, Request, make_table
from babn_paper.experiments.records import collect
from babn_paper.experiments.result_pages import (
    AUTHOR,
    PAGE,
    Section,
    circumstances,
    main_table,
    write_report,
)

TITLES = {
    "table1": "Table 1: language understanding",
    "table2": "Table 2: generalisation across domains",
    ATTACKS: "Table 3: attacks by changed words",
    "table4": "Table 4: translation",
    "table5": "Table 5: questions about images",
    "ablation": "Ablation: the upward path in shape and scale",
    "efficiency": "Parameters and time of a step",
    FIGURE: "Figure 3: attention to words and to an image",
}
"""The tables in the order in which they are made; figure 3 uses a model of table 5."""

NAME = "all"
"""Argument that stands for all tables, and name of the report's folder."""


def make_all(request: Request, only: str | None) -> None:
    """Makes every table and the report; a table that fails does not stop the others."""
    tables = _parse_only(only)
    _check(tables, request)
    folder = request.under / NAME
    check_target(folder, PAGE, AUTHOR, force=False)
    console = Console(highlight=False)
    failures: dict[str, str] = {}
    for table in tables:
        reason = "" if request.show else _skipped(table)
        if not reason and not (request.show and table == FIGURE):
            reason = _try(table, request, console)
            failures |= {table: reason} if reason else {}
        sections = [_section(each, request, failures) for each in tables]
        # Written after every table, so that an interrupted command leaves a report.
        page = write_report(sections, folder, " ".join(["babn", *sys.argv[1:]]), request.quick)
    for section in sections:
        console.print(f"{section.title}: {section.state}", markup=False, soft_wrap=True)
    console.print(f"{page}, with RESULTS.md beside it", markup=False, soft_wrap=True)
    if failures:
        reasons = " ".join(f"{table}: {reason}" for table, reason in failures.items())
        raise CommandError(f"{len(failures)} of {len(tables)} tables are incomplete. {reasons}")


def _parse_only(only: str | None) -> list[str]:
    if only is None:
        return list(TITLES)
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in TITLES]:
        raise ConfigError(f"--only {unknown[0]} is not a table. Choose from {', '.join(TITLES)}.")
    return [table for table in TITLES if table in names]


def _check(tables: Sequence[str], request: Request) -> None:
    """Validates the options of all tables before any run starts."""
    check_jobs(request.jobs)
    for table in tables:
        request.grid(table).jobs(request.overrides, request.under)


def _skipped(table: str) -> str:
    """Why a table is skipped; empty if it is not."""
    if table != ATTACKS:
        return ""
    try:
        check_installed()
    except MissingExtraError as error:
        return f"TextAttack is not installed. {one_line(error)}"
    return ""


def _try(table: str, request: Request, console: Console) -> str:
    """Makes a table and returns its error message, or an empty string."""
    console.rule(Text(TITLES[table]), align="left")
    start = time.monotonic()
    try:
        make_table(table, request)
    except Exception as error:
        reason = one_line(error)
        console.print(Text(f"{table}: {reason}", style="red"), soft_wrap=True)
        return reason
    console.print(f"{table}: {time.monotonic() - start:.0f} s", markup=False)
    return ""


def _section(table: str, request: Request, failures: dict[str, str]) -> Section:
    """The section of a table in its current state."""
    describe: Callable[[str, Request], Section] = {
        ATTACKS: _attack_section,
        FIGURE: _figure_section,
    }.get(table, _grid_section)
    section = describe(table, request)
    return section.failed(failures[table]) if table in failures else section


def _grid_section(table: str, request: Request) -> Section:
    records = collect(request.grid(table).jobs(request.overrides, request.under))
    runs = [record for record in records if record.experiment["method"] != "ensemble"]
    done = sum(bool(record.results) for record in runs)
    state = f"{done} of {len(runs)} runs"
    notes = circumstances(records)
    return Section(TITLES[table], _command(table, request), state, main_table(records), notes)


def _attack_section(table: str, request: Request) -> Section:
    runs = [job.folder for job in request.grid(table).jobs(request.overrides, request.under)]
    reason = _skipped(table)
    state = f"not run: {reason}" if reason else "attacks on the models of table 1"
    command = _command(table, request) + ("" if request.resources else " --resources DIR")
    found = descriptions([run for run in runs if run.is_dir()])
    return Section(TITLES[table], command, state, attack_table(found))


def _figure_section(table: str, request: Request) -> Section:
    pictures = sorted((request.under / FIGURE).glob("*.png"), reverse=True)
    state = f"{len(pictures)} pictures" if pictures else "not run"
    return Section(TITLES[table], _command(table, request), state, pictures=pictures)


def _command(table: str, request: Request) -> str:
    """The command that makes one table alone."""
    words = ["babn", "reproduce", table, *(["--quick"] if request.quick else [])]
    if request.out != Path("runs"):
        words += ["--out", str(request.out)]
    return " ".join([*words, "--seeds", str(request.seeds)])
