"""Progress and interruption of long work."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any


class Progress:
    """Receives the progress of long work; shows nothing unless overridden."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Begins a task of `total` steps, of which `done` are done already."""

    def step(self, count: int, note: str = "") -> None:
        """Reports that `count` more steps of the task are done."""

    def say(self, line: str) -> None:
        """Reports an event."""


class _NoBar:
    def update(self) -> None: ...

    def close(self) -> None: ...


def bar(task: str, total: int | None, shown: bool) -> Any:
    """A progress bar of tqdm with `update` and `close`; an invisible one without tqdm."""
    if shown and find_spec("tqdm"):
        from tqdm.auto import tqdm

        return tqdm(total=total, desc=task, leave=False)
    return _NoBar()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Blocks SIGINT inside a `with` statement.

    Worker processes that start there ignore it, since their parent ends them itself.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
