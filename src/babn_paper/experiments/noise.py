"""Fits the noise of a run to development data, and gives noise to models trained without."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import babn
from babn.devices import default_device
from babn.errors import ConfigError
from babn.evaluation.noise_tuning import NoiseTuning
from babn.text import quiet
from babn_paper.experiments.attention import with_attention
from babn_paper.experiments.config_files import own_experiment
from babn_paper.experiments.evaluation import autocast, read_part
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.models import load_tokenizer
from babn_paper.experiments.run import save_model
from babn_paper.experiments.run_folder import RunFolder, environment, write_json
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.pretrained import model_source
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.own_texts import OwnTexts
from babn_paper.tasks.task import MEMORY
from babn_paper.tasks.text_task import TextTask

NOISE = {"method": "belief", "preset": "", "settings": {"noise_over": "keys"}}
"""Fields of an experiment with the default of the library."""


def tune_run(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    part: str = "dev",
    samples: int | None = None,
    progress: bool = True,
) -> tuple[NoiseTuning, int]:
    """Fits the noise level of a finished run and saves it with the run's model.

    Predictions and results of the run are not changed; `evaluate` replaces them.

    Args:
        folder: The run's folder.
        out: Folder of a new run with the tuned model; a softmax run needs one, for its converted
            model.
        part: The part of the data to fit to.
        samples: Samples of attention; by default as in the run.
        progress: Whether to show a progress bar.

    Returns:
        The levels tried, and the number of examples.
    """
    place = RunFolder(folder)
    experiment, model = place.experiment(), place.trained_model()
    softmax = experiment.method == "softmax"
    if softmax and out is None:
        raise ConfigError(
            "method='softmax' has no noise to tune. Name the folder of a converted copy with --out."
        )
    new = None if out is None else RunFolder(out)
    if new is not None:
        new.check_free()
    with place.locked():
        task_model = load_task_model(experiment, model)
        _check(task_model)
        if softmax:
            noisy = Experiment.from_dict({**experiment.to_dict(), **NOISE})
            base = babn.revert(task_model.model)
            task_model = _converted(replace(task_model, model=base, experiment=noisy))
        found = _tune(task_model, part, samples, progress)
        if new is None:
            save_model(task_model, place.model)
        else:
            _save_run(task_model, new)
    return found


def tune_model(
    model: str,
    out: str | Path,
    task: str,
    flags: Mapping[str, str | None],
    *,
    samples: int | None = None,
    progress: bool = True,
) -> tuple[NoiseTuning, int]:
    """Converts a fine-tuned model, fits its noise to your own data, and makes a run of it.

    Args:
        model: A folder that `save_pretrained` wrote, or a name on the hub.
        out: Folder of the new run.
        task: Kind of task, as for `babn train --task`.
        flags: Columns and files by the names of the flags of `babn train`; `dev` is needed.
        samples: Samples of attention.
        progress: Whether to show a progress bar.

    Returns:
        The levels tried, and the number of examples.
    """
    place = RunFolder(out)
    place.check_free()
    if not flags.get("dev"):
        raise ConfigError("--dev is missing. Name the development data that noise is fitted to.")
    source = model_source(model)
    loaded, names = _load_tuned(source, task)
    experiment = own_experiment(task, {**flags, "train": flags["dev"], "model": model}, {})
    experiment = replace(experiment, options=_with_names(experiment, names))
    described = find_task(task, experiment.options)
    task_model = TaskModel(
        experiment=experiment,
        task=described,
        model=loaded.to(default_device()),
        tokenizer=load_tokenizer(source),
        max_length=experiment.max_length or described.max_length,
    )
    _check(task_model)
    task_model = _converted(task_model)
    found = _tune(task_model, "dev", samples, progress)
    _save_run(task_model, place)
    return found


def _load_tuned(source: str, task: str) -> tuple[Any, list[str]]:
    """A fine-tuned model, and the names of its classes."""
    kind = find_task(task)
    if not isinstance(kind, OwnTexts):
        raise ConfigError(
            f"--task {task} is not supported for a transformers model. Give classification, "
            "regression or multiple-choice."
        )
    with quiet():
        try:
            loaded, about = kind.auto_class.from_pretrained(source, output_loading_info=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{source} cannot be loaded: {error}") from error
    if missing := sorted(about["missing_keys"]):
        raise ConfigError(
            f"{source} has no trained head: {', '.join(missing[:3])} are missing. Give a model "
            "that was fine-tuned for the task, or train it with babn train."
        )
    labels = loaded.config.id2label
    return loaded.eval(), [str(labels[i]) for i in range(len(labels))]


def _with_names(experiment: Experiment, names: list[str]) -> dict[str, Any]:
    """Options with the classes of the model: its names if the data has them, else numbers."""
    if experiment.task == "regression":  # the model predicts in the units of the data
        return {**experiment.options, "mean": 0.0, "scale": 1.0}
    if experiment.task != "classification":
        return dict(experiment.options)
    found, numbers = experiment.options["classes"], [str(i) for i in range(len(names))]
    for classes in (names, numbers):
        if set(found) <= set(classes):
            return {**experiment.options, "classes": classes}
    raise ConfigError(
        f"The data has the classes {found}, the model {names}. Give labels of the model, by name "
        f"or from 0 to {len(names) - 1}."
    )


def _converted(task_model: TaskModel) -> TaskModel:
    """The same with random attention."""
    experiment, task = task_model.experiment, task_model.task
    part = task.tested_parts(experiment.data)[0]
    _, data = read_part(task_model, part)
    example = task.dry_run(data.to(task_model.device))
    model = with_attention(task_model.model, experiment, example, task_model.max_length)
    return replace(task_model, model=model)


def _save_run(task_model: TaskModel, place: RunFolder) -> None:
    """Writes configuration, environment and model of a new run."""
    place.begin(task_model.experiment)
    write_json(place.environment, environment())
    save_model(task_model, place.model)


def _tune(
    task_model: TaskModel, part: str, samples: int | None, progress: bool
) -> tuple[NoiseTuning, int]:
    experiment = task_model.experiment
    _, data = read_part(task_model, part)
    moved = data.to(task_model.device)
    order = data.lengths.argsort(descending=True, stable=True)
    rows = order.split(task_model.task.eval_batch_size)
    with autocast(experiment, task_model.device), torch.no_grad():
        found = babn.tune_noise(
            task_model.model,
            [moved.batch(each, task_model.multiple) for each in rows],
            samples=samples or experiment.samples,
            seed=experiment.seed,
            memory=MEMORY if task_model.device.type == "cuda" else None,
            progress=progress,
        )
    return found, len(data)


def _check(task_model: TaskModel) -> None:
    """Raises unless the model predicts classes or numbers for texts."""
    task = task_model.task
    if not isinstance(task, TextTask):
        raise ConfigError(
            f"The noise of task={task.name!r} cannot be tuned: it is fitted to the likelihood of "
            "classes or numbers. Give a run of classification, regression or multiple choice."
        )
