"""Engines, which do the runs of a grid on this machine, on a Ray cluster or through Slurm."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from babn.errors import BabnError, ConfigError
from babn.validation import check_at_least, check_count


class WorkerDiedError(BabnError, RuntimeError):
    """A worker process ended in the middle of a run, which may succeed when repeated."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of the runs of a grid.

    Attributes:
        jobs: Number of parallel runs.
        cpus: Cores for each run; by default an equal share of the machine or cluster.
        gpus: GPUs for each run, from 0 to 1, so that runs can share one; by default an equal share
            of the available ones.
    """

    jobs: int = 1
    cpus: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        """Validates the fields."""
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
    """Does one run at a time."""

    @abstractmethod
    def run(self, folder: Path) -> str:
        """Does the run prepared in a folder and returns the worker's reply.

        Raises:
            WorkerDiedError: If the worker process dies.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Stops the run at its next checkpoint; the second call stops it at once."""

    @abstractmethod
    def close(self) -> None:
        """Releases the resources of the slot."""


class Engine(ABC):
    """Makes slots."""

    @abstractmethod
    def slot(self, number: int) -> Slot:
        """Makes the slot with a number, counted from 0."""

    def close(self) -> None:  # noqa: B027  (most engines have none)
        """Releases the resources of the engine."""


def make_engine(
    name: str, resources: Resources, logs: Path, options: Mapping[str, str] | None = None
) -> Engine:
    """Makes an engine by name.

    Args:
        name: `"local"`, `"ray"` or `"slurm"`.
        resources: Resources of the runs.
        logs: Folder for the engine's own files.
        options: Slurm parameters.
    """
    if options and name != "slurm":
        raise ConfigError(f"--slurm {' '.join(options)} does not apply to --engine {name}.")
    if name == "local":
        from babn_paper.experiments.engines.local import LocalEngine

        return LocalEngine(resources)
    if name == "ray":
        from babn_paper.experiments.engines.ray import RayEngine

        return RayEngine(resources)
    if name == "slurm":
        from babn_paper.experiments.engines.slurm import SlurmEngine

        return SlurmEngine(resources, logs, options or {})
    raise ConfigError(f"--engine {name!r} is not known. Choose local, ray or slurm.")
