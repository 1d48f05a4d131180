"""Several runs side by side, each once, whatever becomes of the processes that run them."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from babn.errors import BabnError, one_line
from babn.interrupts import Interrupts
from babn.progress import Progress
from babn_paper.experiments.claims import BusyError
from babn_paper.experiments.engines.engine import Engine, Resources, Slot, WorkerDiedError
from babn_paper.experiments.engines.local import LocalEngine
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import check_same
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.worker import BUSY, INTERRUPTED, OUT_OF_MEMORY
from babn_paper.tasks.catalogue import find_task

RETRIES = 2
"""How often a run is started again whose process has died."""

PAUSE = 1.0
"""Seconds between looks at runs that another process works on."""


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


def run_all(
    jobs: Sequence[Job],
    parallel: int,
    progress: Progress,
    *,
    engine: Engine | None = None,
    retries: int = RETRIES,
) -> dict[Path, str]:
    """Runs what is not done yet, each in its own folder, and returns what went wrong where.

    Finished runs are left alone and unfinished ones go on. A run that fails does not stop others;
    one whose process dies is started again and goes on from its checkpoint. One that finds too
    little memory beside others goes on later, with one process fewer. Runs that another process
    works on are waited for. All first seeds go before all second ones, so that a sweep cut short
    has whole tables.

    Args:
        jobs: The runs.
        parallel: How many at a time, each in a process of its own.
        progress: Is told of every run that ends.
        engine: Where they are run; by default on this machine.
        retries: How often a run is started again whose process has died.
    """
    for job in jobs:  # before anything is written
        find_task(job.experiment.task, job.experiment.options)
    try:
        for job in jobs:
            _prepare(job)
        return _run_missing(jobs, parallel, progress, engine, retries)
    finally:
        for job in jobs:
            RunFolder(job.folder).withdraw()


def _run_missing(
    jobs: Sequence[Job], parallel: int, progress: Progress, engine: Engine | None, retries: int
) -> dict[Path, str]:
    wanted = [job for job in _by_seed(jobs) if RunFolder(job.folder).state != "done"]
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


def _by_seed(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.experiment.seed)


def _prepare(job: Job) -> None:
    """Begins a run, or makes sure that the one that is there is the same."""
    folder = RunFolder(job.folder)
    while folder.state == "absent":
        try:
            with folder.locked():
                if folder.state == "absent":
                    folder.begin(job.experiment, job.command)
        except BusyError:  # another sweep does the same at this moment
            time.sleep(PAUSE)
    check_same(folder.experiment(), job.experiment, job.folder)


def _wait(
    futures: Sequence["Future[None]"], interrupts: Interrupts, stop: Callable[[], None]
) -> None:
    """Waits for all, and passes every Ctrl-C on."""
    told = False
    while True:
        try:
            if not wait(futures, timeout=PAUSE / 5).not_done:
                break
            if interrupts.requested and not told:
                told = True
                stop()
        except KeyboardInterrupt:  # the second Ctrl-C, and every one after it
            stop()
    for future in futures:
        future.result()


def _work(slot: Slot, queue: "_Queue") -> None:
    """Runs what is waiting in one slot."""
    try:
        while (job := queue.take()) is not None:
            try:
                _prepare(job)  # another sweep that has ended may have withdrawn it
                queue.note(job, slot.run(job.folder))
            except WorkerDiedError as death:
                queue.note_death(job, str(death))
            except BabnError as error:
                queue.note(job, one_line(error))
    finally:
        slot.close()


class _Queue:
    """Runs that wait for a slot, and what became of the others."""

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
        """The next run that nobody works on, once there is one; `None` for a slot to be closed."""
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

    def note(self, job: Job, answer: str) -> None:
        """Keeps a worker's answer to a run."""
        with self._lock:
            if answer == INTERRUPTED:
                self.stopped = True
            elif answer == BUSY:
                self.waiting.append(job)
                return
            elif answer == OUT_OF_MEMORY and not self.alone[job.folder]:
                self.waiting.append(job)
                self.surplus += 1
                self.progress.say(
                    f"{job.folder}: too little memory beside other runs; goes on later, with one "
                    "run fewer at a time"
                )
                return
            elif answer:
                self.failed[job.folder] = answer
        self.progress.step(1, f"{job.folder}: {answer}" if answer else str(job.folder))

    def note_death(self, job: Job, end: str) -> None:
        """Puts a run whose process has died back, unless that has happened too often."""
        with self._lock:
            self.deaths[job.folder] += 1
            count = self.deaths[job.folder]
            if self.stopped:
                return
            if count <= self.retries:
                self.waiting.appendleft(job)
                self.progress.say(f"{job.folder}: {end}; started again ({count} of {self.retries})")
                return
            self.failed[job.folder] = f"{end}; go on with the same command"
        self.progress.step(1, f"{job.folder}: {self.failed[job.folder]}")

    def stop(self, slots: Iterable[Slot]) -> None:
        """Starts nothing more, and interrupts what runs."""
        self.stopped = True
        for slot in slots:
            slot.interrupt()
