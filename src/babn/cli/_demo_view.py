"""What the demo shows in the terminal."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn.cli._progress import Bars
from babn.demo import report
from babn.demo.outcome import Outcome, Settings
from babn.demo.output import PAGE
from babn.demo.run import find_source, pick_recipe


class Terminal(Bars):
    """Shows progress bars while the demo runs, and its results in the end."""

    def __init__(self) -> None:
        super().__init__(Console(highlight=False))

    def announce(self, settings: Settings) -> None:
        """Prints what is about to happen."""
        source = find_source(settings)
        if source.remark:
            self.console.print(source.remark, style="yellow", markup=False, soft_wrap=True)
        self._say(*report.announcement(source, pick_recipe(settings, source)), "")

    def show(self, outcome: Outcome, folder: Path) -> None:
        """Prints the table, what it means, two sentences, and what to do next."""
        self.console.print(table(outcome))
        self._say(report.tested_on(outcome), "", style="dim")
        self.console.print(legend())
        self._say("", f"{report.heading(outcome)}:")
        self._say(*(f"  {verdict}" for verdict in report.verdicts(outcome)))
        self._say(report.caveat(outcome), "", style="dim")
        self._say(*(f'"{each.text}": {report.certainty(each)}' for each in outcome.examples), "")
        self.console.print(f"Charts: {folder / PAGE}", markup=False, soft_wrap=True)
        self.console.print(next_steps())

    def _say(self, *lines: str, style: str | None = None) -> None:
        for line in lines:
            self.console.print(line, style=style, markup=False)


def table(outcome: Outcome) -> Table:
    """The results, one row for each method."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column("attention", no_wrap=True, vertical="bottom")
    for column in report.COLUMNS:
        shown = [*column.name.split(), *map(column.show, outcome.rows)]
        width = max(map(len, shown))  # headings break between words, numbers never
        made.add_column(column.name, justify="right", vertical="bottom", width=width)
    for row in outcome.rows:
        made.add_row(row.name, *(column.show(row) for column in report.COLUMNS))
    return made


def legend() -> Table:
    """What the columns mean."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    for column in report.COLUMNS:
        made.add_row(column.name, column.legend, style="dim")
    return made


def next_steps() -> Table:
    """What to do next."""
    made = Table.grid(padding=(0, 2))
    for i, (command, meaning) in enumerate(report.NEXT):
        made.add_row("Next:" if i == 0 else "", command, meaning)
    return made
