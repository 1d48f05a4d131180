"""The folder of a run: what is in it, and who may write to it."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from babn.errors import FormatError, one_line
from babn.files import PARTIAL, parse_json, replace_file, replace_text
from babn_paper.experiments.claims import HOLDER, LOCK, claimed, holder
from babn_paper.experiments.claims import RunError as RunError
from babn_paper.experiments.config_files import read_experiment, write_experiment
from babn_paper.experiments.experiment import Experiment

TRACE = "error.txt"
"""The trace of a run that failed in a sweep."""

State = Literal["absent", "unfinished", "done"]


class RunFolder:
    """A run's folder: configuration, environment, logs, checkpoints, model, answers, results.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "experiment.toml"
        self.environment = self.path / "environment.json"
        self.log = self.path / "log.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.answers = self.path / "answers"
        self.results = self.path / "results.json"
        self.evaluations = self.path / "evaluations"
        self.attacks = self.path / "attacks"
        self.trace = self.path / TRACE

    @property
    def state(self) -> State:
        """Whether there is a run here, and whether it has come to its end."""
        if not self.config.exists():
            return "absent"
        return "done" if self.results.exists() else "unfinished"

    @property
    def begun(self) -> bool:
        """Whether the run here has come further than its configuration."""
        return any(path.exists() for path in (*self._files, *self._folders))

    @property
    def _files(self) -> tuple[Path, ...]:
        return self.results, self.environment, self.log

    @property
    def _folders(self) -> tuple[Path, ...]:
        made = self.tensorboard, self.checkpoints, self.model, self.answers
        return *made, self.evaluations, self.attacks

    def check_free(self) -> None:
        """Refuses a folder that holds files of something else."""
        if self.path.is_dir() and any(not _is_trace(p.name) for p in self.path.iterdir()):
            raise RunError(f"{self.path} holds other files. Give another folder with --out.")

    def begin(self, experiment: Experiment, heading: str) -> None:
        """Makes the folder, which must not hold anything yet, and writes the configuration."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_config(experiment, heading)

    def begin_again(self, experiment: Experiment, heading: str) -> None:
        """Removes what the run here has left, and nothing else, for another one."""
        for file in (*self._files, self.trace):
            file.unlink(missing_ok=True)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._write_config(experiment, heading)

    def _write_config(self, experiment: Experiment, heading: str) -> None:
        replace_file(self.config, lambda path: write_experiment(experiment, path, heading))

    def withdraw(self) -> None:
        """Removes the configuration of a run that has not begun, so that another may be given."""
        with suppress(OSError, RunError), self.locked():
            if not self.begun:
                self.config.unlink(missing_ok=True)

    def experiment(self) -> Experiment:
        """The run's configuration."""
        if self.state == "absent":
            raise RunError(f"{self.path} holds no run: it has no {self.config.name}.")
        return read_experiment(self.config)

    def read_results(self) -> dict[str, Any]:
        """What the run came to."""
        if self.state != "done":
            raise RunError(f"{self.path} has no results yet. Run babn train with --resume.")
        try:
            found = parse_json(self.results.read_text(encoding="utf-8"))
            _check_results(found)
            return with_nan(found)
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            raise FormatError(
                f"{self.results} is damaged: {one_line(error)}. Run babn evaluate --again."
            ) from error

    @property
    def holder(self) -> str | None:
        """The process that works on the run, in words; `None` if none does."""
        return holder(self.path)

    def read_environment(self) -> dict[str, Any]:
        """What the run was begun with; nothing if that was never written or is damaged."""
        try:
            found = parse_json(self.environment.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process away; ends with the process, however that ends."""
        with claimed(self.path):
            yield


def _is_trace(name: str) -> bool:
    """Whether a file is what a process leaves that was ended before its run began."""
    return name in (LOCK, HOLDER, TRACE) or (name.startswith(".") and name.endswith(PARTIAL))


NEEDED: dict[str, Any] = {
    "measures": dict,
    "scores": list,
    "parameters": int,
    "steps": int,
    "seconds_per_step": int | float | None,
}
"""What results have to hold, and its type."""


def _check_results(found: Any) -> None:
    """Refuses results that tables cannot be made of."""
    if not isinstance(found, dict) or not found.get("measures"):
        raise ValueError("it holds no measures")
    for name, kind in NEEDED.items():
        if name not in found or not isinstance(found[name], kind):
            raise ValueError(f"{name} is missing or of another type")
    rows = (row for modes in found["measures"].values() for row in modes.values())
    for name, value in (each for row in rows for each in row.items()):
        if not isinstance(value, int | float | None):
            raise ValueError(f"{name} is not a number")


def write_json(path: Path, values: Any) -> None:
    """Writes plain values, the old file whole until the new one is."""
    text = json.dumps(_without_nan(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_text(path, text)


def _without_nan(values: Any) -> Any:
    """Values with null for numbers that are not defined, for which JSON has no word."""
    if isinstance(values, dict):
        return {name: _without_nan(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_without_nan(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def with_nan(results: dict[str, Any]) -> dict[str, Any]:
    """Results whose measures are numbers again."""
    measures = {
        part: {
            mode: {n: math.nan if v is None else v for n, v in values.items()}
            for mode, values in modes.items()
        }
        for part, modes in results.get("measures", {}).items()
    }
    return {**results, "measures": measures} if measures else results
