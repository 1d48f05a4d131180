"""Engines, which execute the runs of a grid, and the one for processes of this machine."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from babn.errors import BabnError, ConfigError
from babn.validation import check_at_least, check_count
from babn_paper.experiments.experiment import Experiment


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
                f"gpus={self.gpus} is invalid: a run of a grid uses one GPU. Give a number "
                "from 0 to 1; for one model on several GPUs use torchrun -m babn train."
            )


@dataclass(frozen=True)
class Job:
    """A run to execute.

    Attributes:
        experiment: The experiment.
        folder: The folder of the run.
    """

    experiment: Experiment
    folder: Path


class Slot(ABC):
    """Executes one run at a time."""

    @abstractmethod
    def run(self, job: Job) -> str:
        """Executes a run and returns the worker's reply.

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
        return LocalEngine(resources)
    if name == "ray":
        from babn_paper.experiments.cluster_engines import RayEngine

        return RayEngine(resources)
    if name == "slurm":
        from babn_paper.experiments.cluster_engines import SlurmEngine

        return SlurmEngine(resources, logs, options or {})
    raise ConfigError(f"--engine {name!r} is not known. Choose local, ray or slurm.")


VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalEngine(Engine):
    """One process per slot; slots are distributed over the GPUs.

    Args:
        resources: Resources of the runs.
    """

    def __init__(self, resources: Resources) -> None:
        self.cpus = resources.cpus or max(1, (os.cpu_count() or 1) // resources.jobs)
        self.hide = resources.gpus == 0

    def slot(self, number: int) -> "LocalSlot":
        """Makes the slot with a number, counted from 0."""
        return LocalSlot(self.cpus, {VISIBLE: ""} if self.hide else one_gpu(number))


def one_gpu(number: int) -> dict[str, str]:
    """The environment variable that restricts a process to one GPU; empty with fewer than two.

    Args:
        number: Number of the process.
    """
    count = torch.cuda.device_count()
    if count < 2:
        return {}
    names = os.environ.get(VISIBLE, ",".join(map(str, range(count)))).split(",")
    return {VISIBLE: names[number % count]}


class LocalSlot(Slot):
    """Executes runs in a worker process, one at a time, and replaces the process if it dies.

    Args:
        cpus: Threads of the process, unless `OMP_NUM_THREADS` is set.
        variables: Environment variables that differ from those of this process.
        cwd: Working directory of the process, if different.
    """

    def __init__(
        self, cpus: int, variables: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self.variables = {"OMP_NUM_THREADS": str(cpus), **os.environ, **(variables or {})}
        self.cwd = cwd
        self.process: Any = None
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the slot)

    def run(self, job: Job) -> str:
        """Executes a run and returns the worker's reply."""
        if self.process is None:
            self.process = self._start()
        wanted = {"folder": str(job.folder), "experiment": job.experiment.to_dict()}
        try:
            self.process.stdin.write(json.dumps(wanted) + "\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            raise WorkerDiedError(f"its process ended with {self._stop()}{self._last_line()}")
        return str(reply.rstrip("\n"))

    def interrupt(self) -> None:
        """Sends SIGINT to the process."""
        process = self.process
        if process is not None:
            process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Waits for the process to end."""
        self._stop()
        self.stderr.close()

    def _start(self) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "babn_paper.experiments.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env=self.variables,
            cwd=self.cwd,
            # SIGINT reaches the process through `interrupt` only, and so once.
            start_new_session=True,
        )

    def _last_line(self) -> str:
        """The last line that the process wrote to standard error, in parentheses."""
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({last[:200]})" if last else ""

    def _stop(self) -> int:
        """Waits for the process to end and returns its exit code."""
        if self.process is None:
            return 0
        with self.process as process:  # closes its pipes
            self.process = None
        return int(process.returncode)
