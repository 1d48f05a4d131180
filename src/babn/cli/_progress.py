"""Progress bars for long commands; plain lines where the output is not a terminal."""

import time

from rich import progress as rich
from rich.console import Console

from babn.progress import Progress

SECONDS = 30
"""Time between two plain lines of one task."""


class Bars(Progress):
    """One bar for each task, with the time that has passed and the time that remains."""

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
