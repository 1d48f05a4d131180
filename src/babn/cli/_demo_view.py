"""Output of the demo in the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from babn.cli._progress import Bars
from babn.cli._rich_tables import plain_table
from babn.demo import result_texts
from babn.demo.demo_folder import VIEW
from babn.demo.demo_run import find_source, pick_recipe
from babn.demo.outcome import Outcome, Settings
from babn.evaluation.html_report import PAGE


class Terminal(Bars):
    """Shows progress bars while the demo runs, and its results at the end."""

    def __init__(self) -> None:
        super().__init__(Console(highlight=False))

    def announce(self, settings: Settings) -> None:
        """Prints the model and the plan."""
        source = find_source(settings)
        if source.remark:
            self.console.print(source.remark, style="yellow", markup=False, soft_wrap=True)
        self._say(*result_texts.announcement(source, pick_recipe(settings, source)), "")

    def show(self, outcome: Outcome, folder: Path) -> None:
        """Prints the table, its legend, two examples, and the next steps."""
        self.console.print(table(outcome))
        self._say(result_texts.tested_on(outcome), "", style="dim")
        self.console.print(legend())
        self._say("", f"{result_texts.heading(outcome)}:")
        self._say(*(f"  {verdict}" for verdict in result_texts.verdicts(outcome)))
        self._say(result_texts.caveat(outcome), "", style="dim")
        self._say(
            *(f'"{each.text}": {result_texts.certainty(each)}' for each in outcome.examples), ""
        )
        for title, name in (("Charts", PAGE), ("Attention", VIEW)):
            self.console.print(f"{title}: {folder / name}", markup=False, soft_wrap=True)
        self.console.print(next_steps())

    def _say(self, *lines: str, style: str | None = None) -> None:
        for line in lines:
            self.console.print(line, style=style, markup=False)


def table(outcome: Outcome) -> Table:
    """The results, one row for each method."""
    columns = result_texts.COLUMNS
    rows = [[row.name, *(column.show(row) for column in columns)] for row in outcome.rows]
    return plain_table(["attention", *(column.name for column in columns)], rows, tight=True)


def legend() -> Table:
    """The meanings of the columns."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    for column in result_texts.COLUMNS:
        made.add_row(column.name, column.legend, style="dim")
    return made


def next_steps() -> Table:
    """The next steps."""
    made = Table.grid(padding=(0, 2))
    for i, (command, meaning) in enumerate(result_texts.NEXT):
        made.add_row("Next:" if i == 0 else "", command, meaning)
    return made
