"""Evaluation of trained models: predictions for every part and mode, measures and results."""

import json
import statistics
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.conversion.state import converted_roots
from babn.errors import BabnWarning, FormatError, StorageError
from babn.prediction.stored_settings import get_residual
from babn.progress import Progress
from babn_paper.experiments.cache import encoded
from babn_paper.experiments.distributed import current_world
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.log import read_log
from babn_paper.experiments.naming import label, method_name, method_of
from babn_paper.experiments.run_folder import RunFolder, replace_folder, write_json
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.task import Mode, Outputs, Part, Predictions, Predictor, Task, without_labels


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


Results = dict[str, Any]


def evaluate(
    folder: str | Path,
    *,
    samples: int | None = None,
    dropout: bool = False,
    data: str | None = None,
    parts: Sequence[str] = (),
    progress: Progress | None = None,
) -> Results:
    """Evaluates the model of a finished run again.

    With the run's own settings, the run's predictions and results are replaced. With other settings
    they go to a folder under `evaluations`. Nothing is written to a read-only run folder.

    Args:
        folder: The run's folder.
        samples: Samples of attention in sampled mode; by default as in the run.
        dropout: Also predict by samples of attention with dropout on.
        data: Source of the test data; by default as in the run.
        parts: Parts of the data to evaluate; by default all test parts of the task.
        progress: Receives the number of finished examples.
    """
    place = RunFolder(folder)
    before = place.experiment()
    wanted = {"samples": samples, "test_dropout": dropout or None, "data": data}
    other = {n: v for n, v in wanted.items() if v is not None and v != getattr(before, n)}
    experiment = Experiment.from_dict(before.to_dict() | other)
    with ExitStack() as stack:
        model = place.trained_model()
        keep = _lock_if_writable(place, stack)
        task_model = load_task_model(experiment, model)
        changes = other | ({"parts": "_".join(parts)} if parts else {})
        target = RunFolder(place.evaluations / label(changes)) if changes else place
        return evaluate_model(task_model, place, progress or Progress(), target, parts, keep=keep)


def _lock_if_writable(place: RunFolder, stack: ExitStack) -> bool:
    """Locks a run until the stack closes; returns whether its folder is writable."""
    try:
        stack.enter_context(place.locked())
    except StorageError as error:
        warnings.warn(f"These results are not saved: {error}", BabnWarning, stacklevel=3)
        return False
    return True


def remeasure(folder: str | Path) -> Results:
    """Recomputes the results of a run from its saved predictions, without the model."""
    place = RunFolder(folder)
    experiment = place.experiment()
    task = find_task(experiment.task, experiment.options)
    results = place.read_results()
    found = {
        (part, mode): task.load_predictions(place.predictions / f"{part}-{mode}")
        for part, by_mode in results["measures"].items()
        for mode in by_mode
    }
    before, results["measures"] = results["measures"], measure(task, found)
    known, now = (json.dumps(each, sort_keys=True) for each in (before, results["measures"]))
    if known != now:  # as texts, in which NaN is equal to NaN
        try:
            write_json(place.results, results)
        except StorageError as error:
            warnings.warn(f"These results are not saved: {error}", BabnWarning, stacklevel=2)
    return results


def evaluate_model(
    task_model: TaskModel,
    place: RunFolder,
    progress: Progress,
    target: RunFolder | None = None,
    parts: Sequence[str] = (),
    resume: bool = False,
    keep: bool = True,
) -> Results:
    """Tests a trained model in every mode on every test part of its task.

    Args:
        task_model: The model.
        place: Its run.
        progress: Receives the number of finished examples.
        target: Folder for predictions and results; by default the run.
        parts: Parts to test on; by default all test parts that the data has.
        resume: Reuse predictions that were saved before an interruption.
        keep: Whether to save predictions and results.
    """
    target, world = target or place, current_world()
    found: dict[tuple[str, str], Predictions] = {}
    for part in parts or task_model.task.tested_parts(task_model.experiment.data):
        read = cache(partial(read_part, task_model, part))
        for mode in modes(task_model):
            folder = target.predictions / f"{part}-{mode}"
            saved = None
            if resume:
                saved = world.from_rank_zero(partial(_saved_predictions, task_model.task, folder))
            if saved is None:
                saved = predict_part(task_model, *read(), mode, progress)
                method = method_name(method_of(task_model.experiment.to_dict()), mode)
                saved = saved.named(method, task_model.experiment.seed)
                if keep and world.is_rank_zero:
                    replace_folder(folder, saved.save)
            found[part, mode] = saved

    def results() -> Results:
        made = _summary(task_model, place) | {
            "measures": measure(task_model.task, found),
            "notes": {name: text for each in found.values() for name, text in each.notes().items()},
        }
        if keep:
            write_json(target.results, made)
        return made

    return world.from_rank_zero(results)


def _saved_predictions(task: Task[Any], folder: Path) -> Predictions | None:
    """The predictions in a folder, or `None` if there are none or they are damaged."""
    try:
        return task.load_predictions(folder) if folder.is_dir() else None
    except (FormatError, OSError):
        return None


def measure(
    task: Task[Any], found: Mapping[tuple[str, str], Predictions]
) -> dict[str, dict[str, dict[str, float]]]:
    """Measures by part and mode, those that compare several parts included."""
    measures: dict[str, dict[str, dict[str, float]]] = {}
    for (part, mode), predictions in found.items():
        measures.setdefault(part, {})[mode] = predictions.measure()
    for mode in dict.fromkeys(mode for _, mode in found):
        across = task.across({part: each for (part, m), each in found.items() if m == mode})
        for part, more in across.items():
            measures[part][mode] |= more
    return measures


def _summary(task_model: TaskModel, place: RunFolder) -> Results:
    experiment, lines = task_model.experiment, read_log(place)
    return {
        "task": experiment.task,
        "model": experiment.model,
        "method": experiment.method,
        "seed": experiment.seed,
        "data": experiment.data,
        "samples": experiment.samples,
        "scores": list(task_model.task.scores),
        "parameters": sum(p.numel() for p in task_model.model.parameters()),
        "steps": lines[-1]["step"] if lines else 0,
        "seconds_per_step": _median(lines, "seconds_per_step"),
        "words_per_second": _median(lines, "words_per_second"),
    }


def _median(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The median over log lines, without the first, which includes compilation and allocation."""
    found = [line[name] for line in lines if name in line]
    return statistics.median(found[1:] or found) if found else None
