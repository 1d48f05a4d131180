"""Predictions of a trained model: at the posterior mean, or averaged over samples."""

from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.state import converted_roots
from babn.prediction.stored_settings import get_residual
from babn.progress import Progress
from babn_paper.experiments.cache import encoded
from babn_paper.experiments.distributed import current_world
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.training_state import TaskModel
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.task import Mode, Outputs, Part, Predictions, Predictor, without_labels


def modes(task_model: TaskModel) -> tuple[Mode, ...]:
    """The modes a model is tested in: posterior mean, samples of attention, samples of dropout."""
    experiment = task_model.experiment
    found: tuple[Mode, ...] = ("mean",) if experiment.method == "softmax" else ("mean", "sampled")
    wanted = experiment.method == "softmax" or experiment.test_dropout
    return (*found, "dropout") if wanted and has_dropout(task_model.model) else found


def has_dropout(model: nn.Module) -> bool:
    """Whether any layer has a positive dropout rate; LSTMs store theirs as `dropout`."""
    rates = (getattr(each, name, 0) for each in model.modules() for name in ("p", "dropout"))
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def read_part(task_model: TaskModel, name: str) -> tuple[Part[Any], Encoded]:
    """Reads and encodes a part of the task's test data."""
    part = task_model.task.read(task_model.experiment.data, name)
    return part, encoded(
        task_model.task, part, task_model.tokenizer, task_model.max_length, training=False
    )


def predict_part(
    task_model: TaskModel,
    part: Part[Any],
    data: Encoded,
    mode: Mode = "mean",
    progress: Progress | None = None,
) -> Predictions:
    """Predictions for a part of the test data.

    Args:
        task_model: Model, task and experiment.
        part: The examples.
        data: The encoded examples.
        mode: Posterior mean, or samples of attention or dropout.
        progress: Receives the number of finished examples.
    """
    progress = progress or Progress()
    progress.begin(f"{part.name}, {mode}", len(data))
    task, outputs = task_model.task, _outputs(task_model, data, mode, progress)
    found = task.predictions(part, data, outputs)
    if mode == "sampled" and converted_roots(task_model.model):  # tune-noise fits it to samples
        return found.with_residual(get_residual(task_model.model))
    return found


def _outputs(task_model: TaskModel, data: Encoded, mode: Mode, progress: Progress) -> Outputs:
    """Rows and model outputs of every batch, each of examples of similar lengths.

    Several processes share the batches. The noise of a batch depends on its number only.
    """
    world = current_world()
    order = data.lengths.argsort(descending=True, stable=True)
    moved, predictor = data.to(task_model.device), predictor_of(task_model, mode)
    batches = order.split(task_model.task.eval_batch_size)
    own: list[tuple[int, Tensor, Any]] = []
    for number in range(world.rank, len(batches), world.size):
        rows = batches[number]
        batch = without_labels(moved.batch(rows, task_model.multiple))
        with torch.no_grad(), autocast(task_model.experiment, task_model.device):
            found = task_model.task.predict(predictor, batch, rows, number)
        found = found.float() if isinstance(found, Tensor) else found
        progress.step(sum(map(len, batches[number : number + world.size])))
        if world.size == 1:
            yield rows, found
        else:
            own.append(pytree.tree_map_only(Tensor, Tensor.cpu, (number, rows, found)))
    for _, rows, found in sorted(world.gather(own), key=itemgetter(0)):
        yield rows, found


def predictor_of(task_model: TaskModel, mode: Mode) -> Predictor:
    """The model and the settings of its predictions, as tasks take them."""
    return Predictor(
        model=task_model.model,
        tokenizer=task_model.tokenizer,
        mode=mode,
        samples=task_model.experiment.samples,
        seed=task_model.experiment.seed,
        max_length=task_model.max_length,
    )


def autocast(experiment: Experiment, device: torch.device) -> AbstractContextManager[Any]:
    """The autocast context of the experiment's precision."""
    if experiment.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
