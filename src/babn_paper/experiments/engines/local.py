"""Runs in processes of this machine."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from babn_paper.experiments.engines import Engine, Resources, Slot, WorkerDiedError

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
    """Does runs in a worker process, one at a time, and replaces the process if it dies.

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

    def run(self, folder: Path) -> str:
        """Does the run prepared in a folder and returns the worker's reply."""
        if self.process is None:
            self.process = self._start()
        try:
            self.process.stdin.write(f"{folder}\n")
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
