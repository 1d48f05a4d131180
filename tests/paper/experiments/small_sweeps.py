"""Sweeps of some seconds as commands, and processes of theirs to kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_experiments import same_weights

from babn_paper.experiments.run_folder import HOLDER, RunFolder

GRID = """
[every]
model = "small"
data = "builtin"
batch_size = 8
steps = 60
checkpoint_every = 4
max_length = 24
samples = 2
[tasks.mrpc]
[methods.softmax]
[methods.belief]
"""


def start_sweep(folder: Path, *arguments: str, grid: str = GRID) -> "subprocess.Popen[str]":
    """`babn sweep` in a folder, two runs at a time."""
    folder.mkdir(exist_ok=True)
    (folder / "small.toml").write_text(grid)
    return subprocess.Popen(
        [sys.executable, "-m", "babn", "sweep", "small.toml", "--jobs", "2", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish_sweep(sweep: "subprocess.Popen[str]") -> str:
    """What a sweep has printed when it ends well."""
    output, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, output
    return output


def interrupt_sweep(sweep: "subprocess.Popen[str]") -> int:
    """Interrupts a sweep and returns its exit code."""
    os.kill(sweep.pid, signal.SIGINT)
    sweep.communicate(timeout=60)
    return sweep.returncode


def until(found: Callable[[], Any], seconds: float = 120) -> Any:
    """Waits for something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise TimeoutError


def worker_in_training(folder: Path) -> tuple[Path, int]:
    """A run that has a checkpoint and is not done, and the process that works on it."""

    def found() -> tuple[Path, int] | None:
        for checkpoint in folder.glob("runs/*/*/*/checkpoints/step-*"):
            run = checkpoint.parents[1]
            try:
                return run, int((run / HOLDER).read_text().split()[1])
            except (OSError, ValueError, IndexError):
                continue
        return None

    return until(found)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def assert_same_runs(one: Path, other: Path) -> None:
    """Both sweeps are done, with the same weights and measures."""
    runs = sorted(path.parent.relative_to(one) for path in one.glob("runs/*/*/*/experiment.toml"))
    assert len(runs) == 2
    for run in runs:
        first, second = (RunFolder(folder / run).read_results() for folder in (one, other))
        assert first["measures"] == second["measures"]
        assert same_weights(one / run, other / run)
        assert not (other / run / HOLDER).exists()
