"""Progress bars for long commands."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from babn.progress import Progress


class Bars(Progress):
    """One bar for each task, with the time it took and the time it will take."""

    def __init__(self, console: Console) -> None:
        self.progress = RichProgress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>6.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
        )
        self.task = TaskID(0)

    def __enter__(self) -> "Bars":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Adds a bar."""
        self.task = self.progress.add_task(task, total=total, completed=done, note="")

    def step(self, count: int, note: str = "") -> None:
        """Moves the newest bar on."""
        self.progress.update(self.task, advance=count, note=note)

    def say(self, line: str) -> None:
        """Prints a line above the bars."""
        self.progress.console.print(line, markup=False, soft_wrap=True)
