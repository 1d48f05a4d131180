"""Long work tells how far it has come."""

from abc import ABC, abstractmethod


class Progress(ABC):
    """Is told how far long work has come."""

    @abstractmethod
    def begin(self, task: str, total: int, done: int = 0) -> None:
        """A task of `total` steps begins, some of which were done before."""

    @abstractmethod
    def step(self, count: int, note: str = "") -> None:
        """Some of the task's steps are done."""

    def say(self, line: str) -> None:
        """Something has happened that should stay in view; does nothing unless overridden."""
        return None


class NoProgress(Progress):
    """Nobody looks."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Does nothing."""

    def step(self, count: int, note: str = "") -> None:
        """Does nothing."""
