"""Runs many experiments in parallel and restarts those whose process dies."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from babn.errors import BabnError, one_line
from babn.progress import Progress
from babn_paper.experiments.checkpoints import Interrupts
from babn_paper.experiments.engines import (
    Engine,
    Job,
    LocalEngine,
    Resources,
    Slot,
    WorkerDiedError,
)
from babn_paper.experiments.run import check_same
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.worker import BUSY, INTERRUPTED, OUT_OF_MEMORY
from babn_paper.tasks.catalogue import find_task

RETRIES = 2
"""How often a run is restarted after its process has died."""

PAUSE = 1.0
"""Seconds between checks of runs that another process has locked."""


def run_all(
    jobs: Sequence[Job],
    parallel: int,
    progress: Progress,
    *,
    engine: Engine | None = None,
    retries: int = RETRIES,
) -> dict[Path, str]:
    """Executes all unfinished runs and returns the errors of those that failed, by folder.

    Finished runs are left unchanged and interrupted ones resume. A failed run does not stop the
    others. A run whose process dies is restarted from its checkpoint. A run that is out of memory
    beside others is repeated later, with one process fewer. Runs that another process has locked
    are waited for. Runs are ordered by seed, so that an interrupted sweep has complete tables.

    Args:
        jobs: The runs.
        parallel: Number of parallel runs, each in its own process.
        progress: Receives every run that ends.
        engine: Starts the processes; by default on this machine.
        retries: How often a run is restarted after its process has died.
    """
    for job in jobs:
        find_task(job.experiment.task, job.experiment.options)
        if RunFolder(job.folder).state != "absent":
            check_same(RunFolder(job.folder).experiment(), job.experiment, job.folder)
    ordered = sorted(jobs, key=lambda job: job.experiment.seed)
    wanted = [job for job in ordered if RunFolder(job.folder).state != "done"]
    progress.begin("runs", len(jobs), len(jobs) - len(wanted))
    if not wanted:
        return {}
    engine = engine or LocalEngine(Resources(jobs=parallel))
    slots = [engine.slot(number) for number in range(min(parallel, len(wanted)))]
    queue = _Queue(wanted, len(slots), retries, progress)
    with Interrupts() as interrupts, ThreadPoolExecutor(len(slots)) as pool:
        futures = [pool.submit(_work, slot, queue) for slot in slots]
        _wait(futures, interrupts, lambda: queue.stop(slots))
    if queue.stopped:
        raise KeyboardInterrupt
    return queue.failed


def _wait(
    futures: Sequence["Future[None]"], interrupts: Interrupts, stop: Callable[[], None]
) -> None:
    """Waits for all futures and forwards every SIGINT."""
    stopped = False
    while True:
        try:
            if not wait(futures, timeout=PAUSE / 5).not_done:
                break
            if interrupts.requested and not stopped:
                stopped = True
                stop()
        except KeyboardInterrupt:  # the second SIGINT, and every later one
            stop()
    for future in futures:
        future.result()


def _work(slot: Slot, queue: "_Queue") -> None:
    """Executes waiting runs in one slot until there are none."""
    try:
        while (job := queue.take()) is not None:
            try:
                queue.note(job, slot.run(job))
            except WorkerDiedError as death:
                queue.note_death(job, str(death))
            except BabnError as error:
                queue.note(job, one_line(error))
    finally:
        slot.close()


class _Queue:
    """The waiting runs and the errors of failed ones, shared by all slots."""

    def __init__(self, jobs: Iterable[Job], slots: int, retries: int, progress: Progress) -> None:
        self.waiting = deque(jobs)
        self.slots, self.retries, self.progress = slots, retries, progress
        self.deaths: Counter[Path] = Counter()
        self.alone: dict[Path, bool] = {}
        self.surplus = 0
        self.failed: dict[Path, str] = {}
        self.stopped = False
        self._lock = threading.Lock()

    def take(self) -> Job | None:
        """Waits for the next unlocked run; `None` if the slot is no longer needed."""
        while True:
            with self._lock:
                if self.stopped or not self.waiting or (self.surplus and self.slots > 1):
                    self.slots -= 1
                    self.surplus = max(0, self.surplus - 1)
                    return None
                for job in list(self.waiting):
                    folder = RunFolder(job.folder)
                    if folder.holder is None:
                        self.waiting.remove(job)
                        if folder.state != "done":
                            self.alone[job.folder] = self.slots == 1
                            return job
                        self.progress.step(1, f"{job.folder}: done by another process")
            time.sleep(PAUSE)

    def note(self, job: Job, error: str) -> None:
        """Handles the end of a run, with the worker's error message or an empty string."""
        with self._lock:
            if error == INTERRUPTED:
                self.stopped = True
            elif error == BUSY:
                self.waiting.append(job)
                return
            elif error == OUT_OF_MEMORY and not self.alone[job.folder]:
                self.waiting.append(job)
                self.surplus += 1
                self.progress.say(
                    f"{job.folder}: out of memory beside other runs; repeated later, with one "
                    "parallel run fewer"
                )
                return
            elif error:
                self.failed[job.folder] = error
        self.progress.step(1, f"{job.folder}: {error}" if error else str(job.folder))

    def note_death(self, job: Job, end: str) -> None:
        """Requeues a run whose process has died, unless its retries are used up."""
        with self._lock:
            self.deaths[job.folder] += 1
            count = self.deaths[job.folder]
            if self.stopped:
                return
            if count <= self.retries:
                self.waiting.appendleft(job)
                self.progress.say(f"{job.folder}: {end}; restarted ({count} of {self.retries})")
                return
            self.failed[job.folder] = f"{end}; repeat the command to resume"
        self.progress.step(1, f"{job.folder}: {self.failed[job.folder]}")

    def stop(self, slots: Iterable[Slot]) -> None:
        """Starts no further runs and interrupts the current ones."""
        self.stopped = True
        for slot in slots:
            slot.interrupt()
