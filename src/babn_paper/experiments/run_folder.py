"""The folder of a run: its files, its state, its lock, and the environment of the run."""

import json
import math
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock, Timeout

import babn
from babn.errors import BabnError, FormatError, StorageError
from babn.files import PARTIAL, read_object, replace_file, replace_text
from babn_paper.experiments.config_files import read_experiment, write_experiment
from babn_paper.experiments.experiment import Experiment

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "triton", "datasets")


def environment() -> dict[str, Any]:
    """Start time, command, versions, machine and git state, as plain values."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": invoked_command(),
        "versions": versions(),
        "machine": machine(),
        "git": git_state(Path(babn.__file__).parent),
    }


def invoked_command() -> str:
    """The command line of this process."""
    return shlex.join(["babn", *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Versions of Python, babn and the packages that affect results."""
    found = {"python": platform.python_version(), "babn": babn.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor and GPU, without host or user names."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """The git commit and whether files were changed; `None` outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "."))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


TRACE = "error.txt"
"""File with the traceback of a run that failed in a sweep."""

LOCK, HOLDER = ".lock", ".holder"
"""The file that the operating system locks, and the file that names the holder."""


class RunError(BabnError, RuntimeError):
    """A run's folder is not in the state that the command needs."""


class BusyError(RunError):
    """Another process holds the lock of the run."""


NEEDED = ("measures", "scores", "parameters", "steps", "seconds_per_step")
"""Required fields of the results."""

State = Literal["absent", "unfinished", "done"]


class RunFolder:
    """A run's folder: configuration, environment, log, checkpoints, model, predictions, results."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "experiment.toml"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.results = self.path / "results.json"
        self.evaluations = self.path / "evaluations"
        self.attacks = self.path / "attacks"
        self.trace = self.path / TRACE

    @property
    def predictions(self) -> Path:
        """The folder of saved predictions: `predictions`, or `answers` in older runs."""
        folder, former = self.path / "predictions", self.path / "answers"
        return former if former.is_dir() and not folder.exists() else folder

    @property
    def state(self) -> State:
        """Whether the folder holds a run, and whether the run is finished."""
        if not self.config.exists():
            return "absent"
        return "done" if self.results.exists() else "unfinished"

    def check_free(self) -> None:
        """Raises if the folder holds files that are not of a run."""
        if self.path.is_dir() and any(not _is_left_over(p.name) for p in self.path.iterdir()):
            raise RunError(f"{self.path} holds other files. Choose another folder with --out.")

    def begin(self, experiment: Experiment) -> None:
        """Creates the folder, which must be empty, and writes the configuration."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_config(experiment)

    def begin_again(self, experiment: Experiment) -> None:
        """Removes the files of the run, and nothing else, and writes a new configuration."""
        for file in (self.results, self.environment, self.log, self.trace):
            file.unlink(missing_ok=True)
        made = self.tensorboard, self.checkpoints, self.model, self.predictions
        for folder in (*made, self.evaluations, self.attacks):
            shutil.rmtree(folder, ignore_errors=True)
        self._write_config(experiment)

    def _write_config(self, experiment: Experiment) -> None:
        replace_file(self.config, partial(write_experiment, experiment))

    def experiment(self) -> Experiment:
        """Reads the configuration."""
        if self.state == "absent":
            raise RunError(f"{self.path} holds no run: there is no {self.config.name} in it.")
        return read_experiment(self.config)

    def read_results(self) -> dict[str, Any]:
        """Reads the results."""
        if self.state != "done":
            raise RunError(f"{self.path} has no results yet. Run babn train with --resume.")
        remedy = "Run babn evaluate --again."
        found = read_object(self.results, remedy)
        if missing := [name for name in NEEDED if name not in found]:
            raise FormatError(f"{self.results} is damaged: {missing[0]} is missing. {remedy}")
        return with_nan(found)

    def trained_model(self) -> Path:
        """The folder of the trained model; raises if there is none."""
        if not self.model.is_dir():
            raise RunError(
                f"{self.path} has no model: the run is not finished (babn train --resume), or its "
                "configuration says keep_model = false."
            )
        return self.model

    def read_environment(self) -> dict[str, Any]:
        """Reads the environment; empty if it is missing or damaged."""
        try:
            return read_object(self.environment, "")
        except FormatError:
            return {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the folder, which is created if it does not exist.

        The operating system releases the lock when the process ends, however it ends. Machines that
        share the folder need a file system that shares its locks.

        Raises:
            BusyError: If another process holds it.
        """
        lock, holder = self._lock(), self.path / HOLDER
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            holder.write_text(f"process {os.getpid()} of {socket.gethostname()}")
        except Timeout as error:
            raise BusyError(f"{self.path} is being written by {self._named_holder()}.") from error
        except OSError as error:
            lock.release()
            raise StorageError.of(self.path, error) from error
        try:
            yield
        finally:
            with suppress(OSError):
                holder.unlink()
            lock.release()

    @property
    def holder(self) -> str | None:
        """A description of the process that holds the lock, `None` if it is free."""
        if not self.path.is_dir():
            return None
        try:
            with self._lock():
                return None
        except Timeout:
            return self._named_holder()
        except OSError:  # a read-only folder
            return None

    def _lock(self) -> FileLock:
        return FileLock(self.path / LOCK, blocking=False)

    def _named_holder(self) -> str:
        try:
            return (self.path / HOLDER).read_text() or "another process"
        except (OSError, ValueError):
            return "another process"


def _is_left_over(name: str) -> bool:
    """Whether a file may be left by a process that was killed before its run started."""
    return name in (LOCK, HOLDER, TRACE) or (name.startswith(".") and name.endswith(PARTIAL))


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Writes a temporary folder and renames it, so that the folder is always complete."""
    temporary = folder.with_name(f".{folder.name}{PARTIAL}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        write(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # frees disk space
        raise
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def write_json(path: Path, values: Any) -> None:
    """Replaces a JSON file atomically; numbers that are not finite are written as null."""
    text = json.dumps(_without_nan(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_text(path, text)


def _without_nan(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _without_nan(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_without_nan(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def with_nan(results: dict[str, Any]) -> dict[str, Any]:
    """Results with NaN for measures that are null in the file."""
    measures = {
        part: {
            mode: {n: math.nan if v is None else v for n, v in values.items()}
            for mode, values in modes.items()
        }
        for part, modes in results.get("measures", {}).items()
    }
    return {**results, "measures": measures} if measures else results
