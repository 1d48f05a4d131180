"""Fits the noise level of a run's model to development data."""

from pathlib import Path

import torch

import babn
from babn.errors import ConfigError
from babn.evaluation.noise_tuning import NoiseTuning
from babn_paper.experiments.predictions import autocast, read_part
from babn_paper.experiments.run import save_model
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.predictor import MEMORY
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.text_task import TextTask


def tune_run(
    folder: str | Path, *, part: str = "dev", samples: int | None = None, progress: bool = True
) -> tuple[NoiseTuning, int]:
    """Fits the noise level of a finished run and saves it with the run's model.

    Predictions and results of the run are not changed; `evaluate` replaces them.

    Args:
        folder: The run's folder.
        part: The part of the data to fit to.
        samples: Samples of attention; by default as in the run.
        progress: Whether to show a progress bar.

    Returns:
        The levels tried, and the number of examples.
    """
    place = RunFolder(folder)
    experiment, model = place.experiment(), place.trained_model()
    with place.locked():
        task_model = load_task_model(experiment, model)
        _check(task_model)
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
        save_model(task_model, place.model)
    return found, len(data)


def _check(task_model: TaskModel) -> None:
    """Raises unless the model is a classifier with random attention."""
    experiment, task = task_model.experiment, task_model.task
    if experiment.rule == "softmax":
        raise ConfigError(
            "rule='softmax' has no noise to tune. Train the run with rule=belief or rule=bam."
        )
    if not isinstance(task, TextTask) or not isinstance(task.target, Classes):
        raise ConfigError(
            f"The noise of task={task.name!r} cannot be tuned: it is fitted to the likelihood of "
            "classes. Give a run of classification or multiple choice."
        )
