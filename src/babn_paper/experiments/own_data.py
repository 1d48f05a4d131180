"""Experiments on your own data, described by the flags of `babn train`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from babn.errors import ConfigError, nearest
from babn_paper.experiments.config_files import merged
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.naming import plain
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.own.files import FILES, OwnFiles

FROM_SCRATCH: Mapping[str, Any] = {"learning_rate": 1e-3, "weight_decay": 0.0, "epochs": 10.0}

DEFAULTS: dict[str, Mapping[str, Any]] = {
    "classification": {},
    "regression": {},
    "multiple-choice": {},
    "translation": {**FROM_SCRATCH, "model": "lstm", "dropout": 0.3, "samples": 8},
    "vqa": {**FROM_SCRATCH, "model": "mcan-small"},
}
"""Tasks on your own data, and the fields of their experiments that differ from the defaults."""

LISTS = ("choices",)
"""Flags with several columns, separated by commas."""


def own_experiment(
    task: str, flags: Mapping[str, str | None], overrides: Mapping[str, Any]
) -> Experiment:
    """Makes the experiment that flags describe; reads the training data for its classes.

    Args:
        task: One of `DEFAULTS`.
        flags: Values of the flags by their names with underscores; `None` if not given.
        overrides: Fields of the experiment.
    """
    if task not in DEFAULTS:
        hint = nearest(task, DEFAULTS, f"Give one of {', '.join(DEFAULTS)}.")
        raise ConfigError(f"--task {task} is not known. {hint}")
    given = {name: value for name, value in flags.items() if value is not None}
    model = given.pop("model", overrides.get("model", DEFAULTS[task].get("model")))
    if model is None:
        raise ConfigError(
            "--model is missing. Give a folder that save_pretrained wrote, a name on the hub, or "
            "small for a tiny model with random weights."
        )
    if "train" not in given:
        raise ConfigError("--train is missing. Name the training data.")
    fields = merged({**DEFAULTS[task], "task": task, "model": model, "data": FILES}, overrides)
    options = merged(_options(task, given, flags), fields.get("options", {}))
    if fields.get("method", "belief") == "belief":  # the default of the library
        fields["settings"] = {"noise_over": "keys", **fields.get("settings", {})}
    described = find_task(task, options)
    assert isinstance(described, OwnFiles)
    return Experiment.from_dict({**fields, "options": {**described.derived(), **options}})


def _options(task: str, given: Mapping[str, str], flags: Iterable[str]) -> dict[str, Any]:
    """Returns the options of a task that are given by flags, which must apply to the task."""
    described = find_task(task)
    assert isinstance(described, OwnFiles)
    known = [name for name in flags if name in described.option_names()]
    for name in given:
        if name not in known:
            listed = ", ".join(f"--{each.replace('_', '-')}" for each in known)
            raise ConfigError(
                f"--{name.replace('_', '-')} does not apply to --task {task}, only {listed} do."
            )
    return {name: _listed(value) if name in LISTS else value for name, value in given.items()}


def _listed(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


def own_name(task: str, train: str) -> str:
    """Returns the name of the folder of runs, such as `classification-reviews`."""
    first = train.partition(",")[0]
    stem = first if first.startswith("hub:") else Path(first).name.partition(".")[0]
    return f"{task}-{plain(stem)}".replace(".", "_")


def describe_data(experiment: Experiment) -> list[str]:
    """Reads and validates all parts of own data, and returns a line about each."""
    task = find_task(experiment.task, experiment.options)
    if not isinstance(task, OwnFiles) or experiment.data != FILES:
        return []
    parts = [task.read(FILES, part) for part in ("train", *task.tested_parts(FILES))]
    return [f"{part.name}: {len(part.examples)} examples ({part.origin})" for part in parts]
