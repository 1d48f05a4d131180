"""The paper's tables from the command line, one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babn_paper.attacks.tiny_resources import write_miniature
from babn_paper.attacks.attack_table import TASKS
from babn_paper.cli._tables import reproduce_attacks
from babn_paper.cli._grids import question_numbers, run_figure, run_grids
from babn_paper.experiments.grids import Grid, chosen, table_grid
from babn_paper.experiments.quick import quick

ATTACKS, FIGURE = "table3", "figure3"

TRAINED = {ATTACKS: "table1", FIGURE: "table5"}
"""Whose models are used by what trains none of its own."""


QUICK_EXAMPLES = 4
"""Examples that are attacked with `--quick`."""


@dataclass(frozen=True)
class Request:
    """How tables are to be made.

    Attributes:
        seeds: Runs of each cell.
        jobs: How many runs at a time.
        overrides: Fields of all runs that are replaced.
        out: Folder for the runs.
        quick: Whether models are small and data built in.
        show: Whether only to collect what has been run.
        examples: How many examples are attacked.
        resources: A folder with what attacks need; with `quick` tiny ones are made by default.
    """

    seeds: int
    jobs: int
    overrides: Mapping[str, Any]
    out: Path
    quick: bool
    show: bool
    examples: int
    resources: str | None

    @property
    def attack_settings(self) -> tuple[int, str | None]:
        """How many examples are attacked, and with which resources; both small for a quick look."""
        if not self.quick or self.resources is not None:
            return self.examples, self.resources
        folder = write_miniature(self.under / "attack_resources")
        return min(self.examples, QUICK_EXAMPLES), str(folder)

    @property
    def under(self) -> Path:
        """The folder of the tables."""
        return self.out / "quick" if self.quick else self.out

    def grid(self, table: str, only: str | None = None) -> Grid:
        """The runs behind a table or a figure."""
        if table == ATTACKS and only is None:
            only = ",".join(TASKS)
        found = select_tasks(table_grid(TRAINED.get(table, table), range(self.seeds)), only)
        return quick(found) if self.quick else found


def make_table(table: str, request: Request, only: str | None = None) -> None:
    """Runs what is missing of a table, shows it and writes it."""
    if table == FIGURE:
        run_figure(request.grid(table), request.overrides, request.under, question_numbers(only))
        return
    grid = request.grid(table, only)
    if table == ATTACKS:
        reproduce_attacks(
            grid,
            request.overrides,
            request.under,
            request.jobs,
            request.show,
            lambda: request.attack_settings,
        )
    else:
        grids = {grid.name: grid}
        run_grids(grids, request.overrides, request.under, jobs=request.jobs, show=request.show)
