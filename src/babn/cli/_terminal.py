"""Output of commands: progress bars and tables."""

import time
from collections.abc import Sequence
from typing import Literal

from rich import progress as rich
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn.progress import Progress

SECONDS = 30
"""Time between two plain lines of one task."""


class Bars(Progress):
    """One bar for each task, with elapsed and remaining time; plain lines outside a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = rich.Progress(
            rich.TextColumn("{task.description:<18}"),
            rich.BarColumn(bar_width=24),
            rich.TextColumn("{task.completed:>6.0f}/{task.total:.0f}"),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = rich.TaskID(0)
        self.printed = 0.0

    def __enter__(self) -> "Bars":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Adds a bar."""
        self.task = self.bars.add_task(task, total=total, completed=done, note="")
        self._print_line(task)

    def step(self, count: int, note: str = "") -> None:
        """Advances the newest bar."""
        self.bars.update(self.task, advance=count, note=note)
        if time.monotonic() - self.printed > SECONDS:
            task = self.bars.tasks[-1]
            self._print_line(f"{task.description} {task.completed:.0f}/{task.total:.0f}  {note}")

    def say(self, line: str) -> None:
        """Prints a line above the bars."""
        self.console.print(line, markup=False, soft_wrap=True)

    def _print_line(self, line: str) -> None:
        if not self.console.is_terminal:
            self.printed = time.monotonic()
            self.console.print(line, markup=False, soft_wrap=True)


def empty_table(title: str | None = None) -> Table:
    """A table without columns."""
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )


def plain_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    title: str | None = None,
    tight: bool = False,
) -> Table:
    """A table with columns of text followed by columns of numbers.

    In a narrow terminal headings break between words, but numbers do not break.

    Args:
        columns: The headings.
        rows: Cells of each row.
        texts: Number of text columns.
        title: Title above the table.
        tight: Whether columns are as narrow as possible, even if the terminal is wide enough.
    """
    made = empty_table(title)
    for i, name in enumerate(columns):
        width = max(map(len, (*name.split(), *(row[i] for row in rows))))
        side: Literal["left", "right"] = "left" if i < texts else "right"
        made.add_column(
            name,
            justify=side,
            no_wrap=i < texts,
            vertical="bottom",
            min_width=width,
            width=width if tight else None,
        )
    for row in rows:
        made.add_row(*row)
    return made
