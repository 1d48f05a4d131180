"""Runs in processes of their own to which something happens at a place that can be counted.

Python tells of every file that it is about to open, rename or delete. A fault is what happens at
the n-th of those within the run's folder: the process is killed, or the disk is full.
"""

import errno
import json
import multiprocessing
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from small_experiments import tiny

from babn.errors import BabnError
from babn_paper.experiments.run import run

CHANGES = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
SHORT: dict[str, Any] = {"steps": 3, "checkpoint_every": 1, "samples": 2}
"""A run with a checkpoint after every step."""


@dataclass(frozen=True)
class Fault:
    """What happens to a run.

    Attributes:
        kind: The process is killed, a change fails, or no file may grow beyond `at` bytes.
        at: Number of the change.
        lasting: Whether every later change fails as well.
    """

    kind: Literal["none", "kill", "full", "limit"] = "none"
    at: int = 0
    lasting: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        code: Exit code of its process, negative for a signal.
        error: What it said; only babn's errors and those of the system are expected.
        changes: The changes that it made or tried to make.
    """

    code: int
    error: str
    changes: tuple[str, ...]


def run_with(fault: Fault, folder: Path, **fields: Any) -> Outcome:
    """Runs an experiment in a process of its own, with `--resume`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fault_warm_up"])
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the server looks for it
    report = folder.with_name(f"{folder.name}.report")
    report.unlink(missing_ok=True)
    process = context.Process(target=_child, args=(fault, str(folder), str(report), fields))
    process.start()
    process.join()  # a slow machine may take minutes; pytest has a time limit
    lines = report.read_text().splitlines() if report.exists() else []
    error = json.loads(lines[-1]) if lines and lines[-1].startswith('"') else ""
    changes = tuple(line for line in lines if not line.startswith('"'))
    return Outcome(process.exitcode or 0, error, changes)


def _child(fault: Fault, folder: str, report: str, fields: dict[str, Any]) -> None:
    os.environ["BABN_CACHE"] = f"{Path(folder).parent}/cache"
    note = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    error = ""
    watcher = _Watcher(fault, folder, note)
    sys.addaudithook(watcher)
    if fault.kind == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.at, resource.RLIM_INFINITY))
    try:
        run(tiny(**SHORT | fields), folder, resume=True)
    except (BabnError, OSError) as found:
        error = str(found)
    watcher.folder = "/nowhere"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    os.write(note, (json.dumps(error) + "\n").encode())


class _Watcher:
    """Counts changes, and lets the fault happen."""

    def __init__(self, fault: Fault, folder: str, note: int) -> None:
        self.fault, self.folder, self.note, self.count = fault, folder, note, 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in CHANGES or not self._is_change(event, args):
            return
        os.write(self.note, f"{event} {args[0]}\n".encode())
        self.count += 1
        reached = self.count == self.fault.at or (self.fault.lasting and self.count > self.fault.at)
        if self.fault.kind == "kill" and reached:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.kind == "full" and reached:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))

    def _is_change(self, event: str, args: tuple[Any, ...]) -> bool:
        if not isinstance(args[0], str | os.PathLike):
            return False
        writes = event != "open" or bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        return writes and os.fspath(args[0]).startswith(self.folder)
