"""Progress of long work."""

from abc import ABC, abstractmethod


class Progress(ABC):
    """Receives the progress of long work."""

    @abstractmethod
    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Begins a task of `total` steps, of which `done` are done already."""

    @abstractmethod
    def step(self, count: int, note: str = "") -> None:
        """Reports that `count` more steps of the task are done."""

    def say(self, line: str) -> None:
        """Reports an event; does nothing unless overridden."""
        return None


class NoProgress(Progress):
    """Shows nothing."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Does nothing."""

    def step(self, count: int, note: str = "") -> None:
        """Does nothing."""
