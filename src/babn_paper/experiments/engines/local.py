"""Processes on this machine."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from babn_paper.experiments.engines.engine import Engine, Resources, Slot, WorkerDiedError

VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalEngine(Engine):
    """Each slot has a process of its own, and slots take turns over the GPUs.

    Args:
        resources: What runs may take.
    """

    def __init__(self, resources: Resources) -> None:
        self.cpus = resources.cpus or max(1, (os.cpu_count() or 1) // resources.jobs)
        self.hide = resources.gpus == 0

    def slot(self, number: int) -> "LocalSlot":
        """The slot with a number, from 0 on."""
        return LocalSlot(self.cpus, {VISIBLE: ""} if self.hide else one_gpu(number))

    def close(self) -> None:
        """Does nothing: every slot ends its own process."""


def one_gpu(number: int) -> dict[str, str]:
    """The variable that shows a process one of several GPUs; nothing where there are not several.

    Args:
        number: Of the process.
    """
    count = torch.cuda.device_count()
    if count < 2:
        return {}
    names = os.environ.get(VISIBLE, ",".join(map(str, range(count)))).split(",")
    return {VISIBLE: names[number % count]}


class LocalSlot(Slot):
    """Hands runs to a process, one at a time, and starts another process if it dies.

    Args:
        cpus: Threads of the process, unless `OMP_NUM_THREADS` says otherwise.
        variables: Environment variables that differ from this process's.
        cwd: Where relative paths begin, if not here.
    """

    def __init__(
        self, cpus: int, variables: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self.variables = {"OMP_NUM_THREADS": str(cpus), **os.environ, **(variables or {})}
        self.cwd = cwd
        self.process: Any = None
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the slot)

    def run(self, folder: Path) -> str:
        """Runs what is prepared in a folder, and returns the worker's answer."""
        if self.process is None:
            self.process = self._start()
        try:
            self.process.stdin.write(f"{folder}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise WorkerDiedError(f"its process ended with {self._stop()}{self._last_words()}")
        return str(answer.rstrip("\n"))

    def interrupt(self) -> None:
        """Does to the process what Ctrl-C does."""
        process = self.process
        if process is not None:
            process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Waits for the process to end."""
        self._stop()
        self.complaints.close()

    def _start(self) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "babn_paper.experiments.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env=self.variables,
            cwd=self.cwd,
            # Ctrl-C reaches it through `interrupt` alone, and so once.
            start_new_session=True,
        )

    def _last_words(self) -> str:
        """The last line that a process wrote before it died, if it wrote any."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({last[:200]})" if last else ""

    def _stop(self) -> int:
        """Waits for the process to end, and returns its code."""
        if self.process is None:
            return 0
        with self.process as process:  # closes its pipes
            self.process = None
        return int(process.returncode)
