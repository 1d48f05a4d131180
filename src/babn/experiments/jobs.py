"""Several runs side by side on one machine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from babn.experiments.experiment import Experiment
from babn.experiments.run import check_same
from babn.experiments.run_folder import RunFolder
from babn.experiments.worker import INTERRUPTED
from babn.watch import Watch


@dataclass(frozen=True)
class Job:
    """A run that is wanted.

    Attributes:
        experiment: What to run.
        folder: Where.
        command: The command that runs it alone.
    """

    experiment: Experiment
    folder: Path
    command: str


def run_all(jobs: Sequence[Job], parallel: int, watch: Watch) -> dict[Path, str]:
    """Runs what is not done yet, each in its own folder, and returns what went wrong where.

    Finished runs are left alone and unfinished ones go on. A run that fails does not stop others.
    All first seeds go before all second ones, so that a sweep cut short has whole tables.

    Args:
        jobs: The runs.
        parallel: How many at a time, each in a process of its own.
        watch: Is told of every run that ends.
    """
    waiting: SimpleQueue[Job] = SimpleQueue()
    for job in sorted(jobs, key=lambda job: job.experiment.seed):
        _prepare(job)
        if RunFolder(job.folder).state != "done":
            waiting.put(job)
    watch.begin("runs", len(jobs), len(jobs) - waiting.qsize())
    failed: dict[Path, str] = {}
    workers = [_Worker(waiting, failed, watch, parallel) for _ in range(parallel)]
    with ThreadPoolExecutor(parallel) as pool:
        futures = [pool.submit(worker.work) for worker in workers]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            # The terminal has told the workers as well; they write a checkpoint and stop.
            _drain(waiting)
            raise
    if INTERRUPTED in failed.values():
        raise KeyboardInterrupt
    return failed


def _drain(waiting: "SimpleQueue[Job]") -> None:
    with suppress(Empty):
        while True:
            waiting.get_nowait()


def _prepare(job: Job) -> None:
    folder = RunFolder(job.folder)
    if folder.state == "absent":
        folder.begin(job.experiment, job.command)
    else:
        check_same(folder.experiment(), job.experiment, job.folder)


class _Worker:
    """Hands runs to a process, one at a time, and starts another process if it dies."""

    def __init__(
        self, waiting: "SimpleQueue[Job]", failed: dict[Path, str], watch: Watch, parallel: int
    ) -> None:
        self.waiting, self.failed, self.watch = waiting, failed, watch
        self.threads = max(1, (os.cpu_count() or 1) // parallel)
        self.process: Any = None
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the worker)

    def work(self) -> None:
        """Runs what is waiting."""
        try:
            while True:
                try:
                    job = self.waiting.get_nowait()
                except Empty:
                    return
                error = self._run(job)
                if error == INTERRUPTED:
                    _drain(self.waiting)
                if error:
                    self.failed[job.folder] = error
                self.watch.step(1, f"{job.folder}: {error}" if error else str(job.folder))
        finally:
            self._stop()
            self.complaints.close()

    def _run(self, job: Job) -> str:
        if self.process is None:
            self.process = self._start()
        try:
            self.process.stdin.write(f"{job.folder}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            end = f"{self._stop()}{self._last_words()}"
            return f"its process ended with {end}; go on with the same command"
        return str(answer.rstrip("\n"))

    def _start(self) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "babn.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env={"OMP_NUM_THREADS": str(self.threads), **os.environ},
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
