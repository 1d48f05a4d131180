"""The protocol of engines: what hands runs to processes, here or on other machines."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from babn.errors import BabnError, ConfigError
from babn.validation import check_at_least, check_count


class WorkerDiedError(BabnError, RuntimeError):
    """A process has ended in the middle of a run, which says nothing against the run itself."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What runs may take.

    Attributes:
        jobs: How many are run at a time.
        cpus: Cores for each; by default a fair share of the machine or cluster.
        gpus: GPUs for each, of which a run uses one, so that shares of one are possible; by default
            a fair share of those that are there.
    """

    jobs: int = 1
    cpus: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        check_count("jobs", self.jobs)
        if self.cpus is not None:
            check_count("cpus", self.cpus)
        if self.gpus is None:
            return
        check_at_least("gpus", self.gpus, 0.0)
        if self.gpus > 1:
            raise ConfigError(
                f"gpus={self.gpus} is not possible: a run of a grid uses one GPU. Give a number "
                "from 0 to 1; for one model on several GPUs use torchrun -m babn train."
            )


class Slot(ABC):
    """A place for one run at a time."""

    @abstractmethod
    def run(self, folder: Path) -> str:
        """Runs what is prepared in a folder, and returns the worker's answer.

        Raises:
            WorkerDiedError: If its process has ended instead.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Asks the run to write a checkpoint and stop; the second time, to stop at once."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the slot holds."""


class Engine(ABC):
    """Makes slots."""

    @abstractmethod
    def slot(self, number: int) -> Slot:
        """The slot with a number, from 0 on."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the engine holds."""
