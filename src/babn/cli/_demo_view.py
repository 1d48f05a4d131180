"""What the demo shows in the terminal."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from babn.demo import report
from babn.demo.outcome import Outcome, Settings
from babn.demo.output import PAGE
from babn.demo.run import find_source, pick_recipe
from babn.progress import Progress


class Terminal(Progress):
    """The terminal, which shows progress bars while the demo runs."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.progress = RichProgress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self.console,
        )
        self.task = TaskID(0)

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Adds a bar."""
        self.task = self.progress.add_task(task, total=total, completed=done, note="")

    def step(self, count: int, note: str = "") -> None:
        """Moves the newest bar on."""
        self.progress.update(self.task, advance=count, note=note)

    def announce(self, settings: Settings) -> None:
        """Says what is about to happen."""
        source = find_source(settings)
        recipe = pick_recipe(settings, source)
        if source.remark:
            self.console.print(source.remark, style="yellow", markup=False, soft_wrap=True)
        self._say(
            f"Model: {source.name}",
            f"Three copies learn to sort short requests by intent, {recipe.epochs} epochs each:",
            "one with softmax attention, one with BAM and one with BABN.",
            "",
        )

    def show(self, outcome: Outcome, folder: Path) -> None:
        """The table, what it means, and what to do next."""
        self.console.print(table(outcome))
        self._say(report.tested_on(outcome), "", style="dim")
        self.console.print(legend())
        self._say("", f"{report.heading(outcome)}:")
        self._say(*(f"  {verdict}" for verdict in report.verdicts(outcome)))
        self._say(report.caveat(outcome), "", style="dim")
        self.console.print(f"Charts: {folder / PAGE}", markup=False, soft_wrap=True)
        self._say(
            "Next:   babn demo --seed 1 --out seed-1   the same with other luck",
            "        babn inspect MODEL                what babn would do to your own model",
        )

    def _say(self, *lines: str, style: str | None = None) -> None:
        for line in lines:
            self.console.print(line, style=style, markup=False)


def table(outcome: Outcome) -> Table:
    """The results, one row for each way of asking."""
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
        goal = f"; {column.goal}" if column.goal else ""
        made.add_row(column.name, f"{column.meaning}{goal}", style="dim")
    return made
