"""One run of an experiment, from an empty folder to results."""

import shutil
from contextlib import ExitStack
from pathlib import Path

from babn.errors import ConfigError, DataError, StorageError
from babn.files import note_files
from babn.progress import Progress
from babn.text import quiet
from babn_paper.experiments.checkpoints import find_checkpoints
from babn_paper.experiments.distributed import World, process_group, was_restarted
from babn_paper.experiments.evaluation import Results, evaluate_model
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run_folder import (
    RunError,
    RunFolder,
    environment,
    replace_folder,
    write_json,
)
from babn_paper.experiments.training import train
from babn_paper.experiments.training_state import TaskModel, TrainingState, prepare_training
from babn_paper.tasks.catalogue import find_task


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Trains and tests the model of an experiment and returns the results.

    Args:
        experiment: The experiment.
        folder: Folder of the run; must not hold another run unless `resume` or `overwrite` is set.
        resume: Resume the unfinished run in the folder; a finished run is left unchanged.
        overwrite: Replace the run in the folder.
        progress: Receives the number of finished steps and examples.
    """
    progress = progress or Progress()
    place = RunFolder(folder)
    if was_restarted():  # torchrun repeats the original command
        resume, overwrite = True, False

    def open_folder(stack: ExitStack) -> Results | None:
        find_task(experiment.task, experiment.options).check_ready()  # before anything is written
        stack.enter_context(place.locked())
        _check_folder(place, experiment, resume, overwrite)
        return place.read_results() if place.state == "done" else None

    with process_group() as world, ExitStack() as stack:
        results = world.from_rank_zero(lambda: open_folder(stack))
        if results is None:
            results = _train_and_test(experiment, place, progress, world)
        if world.is_rank_zero:
            shutil.rmtree(place.checkpoints, ignore_errors=True)
    return results


def interrupted(folder: Path) -> KeyboardInterrupt:
    """An interruption whose message names the newest checkpoint of a run and how to continue."""
    place = RunFolder(folder)
    if place.state != "unfinished":
        return KeyboardInterrupt("interrupted")
    kept = find_checkpoints(place.checkpoints)
    saved = f"the newest checkpoint is {kept[0][1]}" if kept else "there is no checkpoint yet"
    return KeyboardInterrupt(f"interrupted; {saved}. Repeat the command with --resume to continue.")


def _train_and_test(
    experiment: Experiment, place: RunFolder, progress: Progress, world: World
) -> Results:
    state = prepare_training(experiment)
    # The folder is written once data and model are known to load.
    world.from_rank_zero(lambda: _begin(state, place, world.size))
    train(state, place, progress)
    if world.is_rank_zero and experiment.keep_model:
        save_model(state, place.model)
    return evaluate_model(state, place, progress, resume=True)


def _check_folder(place: RunFolder, experiment: Experiment, resume: bool, overwrite: bool) -> None:
    """Raises unless the experiment may use the folder; clears it for `overwrite`."""
    if place.state == "absent":
        place.check_free()
        return
    if overwrite:
        place.begin_again(experiment)
        return
    if not resume:
        remedy = "--overwrite begins again"
        if place.state == "unfinished":
            remedy = f"--resume continues it, {remedy}"
        raise RunError(f"{place.path} holds a run that is {place.state}: {remedy}.")
    check_same(place.experiment(), experiment, place.path)


def check_same(before: Experiment, now: Experiment, path: Path) -> None:
    """Raises if a run was started with other settings."""
    old, new = before.to_dict(), now.to_dict()
    changed = [
        f"{name}={old[name]!r} (now {new[name]!r})" for name in old if old[name] != new[name]
    ]
    if changed:
        raise ConfigError(
            f"{path} was started with {', '.join(changed)}. Resume with the same settings, or "
            "choose another folder with --out."
        )


def _begin(state: TrainingState, place: RunFolder, processes: int) -> None:
    """Writes configuration and environment; raises if a run is resumed with other data."""
    if place.state == "absent":
        place.begin(state.experiment)
    data = {"origin": state.train.origin, "fingerprint": state.train.fingerprint}
    before = place.read_environment().get("training_data")
    same = isinstance(before, dict) and before.get("fingerprint") == data["fingerprint"]
    if before is not None and not same and find_checkpoints(place.checkpoints):
        raise DataError(
            f"{place.path} was started with other training data: {before} (now {data}). Resume "
            "with the same data, or choose another folder with --out."
        )
    if not same:
        about = {"training_data": data, "processes": processes}
        write_json(place.environment, environment() | about)


def save_model(task_model: TaskModel, folder: Path) -> None:
    """Writes model, tokenizer and checksums."""

    def write(temporary: Path) -> None:
        with quiet():
            task_model.model.save_pretrained(temporary)  # type: ignore[operator]
            task_model.tokenizer.save_pretrained(temporary)
        note_files(temporary)

    try:
        replace_folder(folder, write)
    except Exception as error:  # transformers reports a full disk by many exception types
        raise StorageError.of(folder, error) from error
