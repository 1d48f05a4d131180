"""A run from beginning to end: training, testing, and the record of both."""

import json
import shutil
import statistics
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from babn.errors import BabnWarning, ConfigError, DataError, FormatError, StorageError
from babn.files import PARTIAL, note_files
from babn.progress import NoProgress, Progress
from babn.text.pretrained import quiet
from babn_paper.experiments.checkpoints import find_checkpoints
from babn_paper.experiments.environment import environment
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.log import read_log
from babn_paper.experiments.naming import label, method_name
from babn_paper.experiments.processes import Processes, process_group, processes, restarted
from babn_paper.experiments.run_folder import RunError, RunFolder, write_json
from babn_paper.experiments.stage import Stage, Subject, load_subject, set_up
from babn_paper.experiments.testing import Questions, modes
from babn_paper.experiments.training import train
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.task import Predictions, Task

Results = dict[str, Any]


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    heading: str = "",
    progress: Progress | None = None,
) -> Results:
    """Trains and tests the model of an experiment, and returns what came of it.

    Args:
        experiment: What to run.
        folder: Where to keep everything; holds no other run unless told so.
        resume: Go on with the unfinished run in the folder; a finished one is left as it is.
        overwrite: Begin again, whatever run the folder holds.
        heading: First line of the configuration that is kept, such as the command.
        progress: Is told how far the run has come.
    """
    progress = progress or NoProgress()
    heading = heading or "an experiment of babn"
    place = RunFolder(folder)
    if restarted():  # torchrun repeats the command as it was
        resume, overwrite = True, False

    def open_folder(stack: ExitStack) -> Results | None:
        find_task(experiment.task, experiment.options).check_ready()  # before any trace is left
        stack.enter_context(place.locked())
        _prepare(place, experiment, resume, overwrite, heading)
        return place.read_results() if place.state == "done" else None

    with process_group() as own, ExitStack() as stack:
        results = own.lead(lambda: open_folder(stack))
        if results is None:
            results = _train_and_finish(experiment, place, heading, progress, own)
        if own.first:
            shutil.rmtree(place.checkpoints, ignore_errors=True)
    return results


def _train_and_finish(
    experiment: Experiment, place: RunFolder, heading: str, progress: Progress, own: Processes
) -> Results:
    """One of several processes writes, once the experiment is known to work."""
    stage = set_up(experiment)
    own.lead(lambda: _begin(stage, place, heading, own.count))
    train(stage, place, progress)
    if own.first and experiment.keep_model:
        _save_model(stage, place.model)
    return finish(stage, place, progress, resume=True)


def evaluate(
    folder: str | Path,
    *,
    samples: int | None = None,
    dropout: bool = False,
    data: str | None = None,
    parts: Sequence[str] = (),
    progress: Progress | None = None,
) -> Results:
    """Asks the model of a finished run again.

    Asked as before, it replaces the run's answers and results; asked otherwise, what comes of it
    goes to a folder of its own under `evaluations`. Nothing is kept where nothing can be written.

    Args:
        folder: The run's folder.
        samples: Samples of attention in sampled mode; by default as before.
        dropout: Whether random attention is asked with dropout on as well.
        data: Where to read the test data; by default where the run did.
        parts: Parts of the data to ask about; by default all that the task is tested on.
        progress: Is told how far it has come.
    """
    place = RunFolder(folder)
    before = place.experiment()
    wanted = {"samples": samples, "test_dropout": dropout or None, "data": data}
    other = {n: v for n, v in wanted.items() if v is not None and v != getattr(before, n)}
    experiment = Experiment.from_dict(before.to_dict() | other)
    with ExitStack() as stack:
        if not place.model.is_dir():
            raise RunError(
                f"{folder} has no model: it is not finished (babn train --resume), or its "
                "configuration says keep_model = false."
            )
        keep = _lock_if_writable(place, stack)
        subject = load_subject(experiment, place.model)
        changes = other | ({"parts": "_".join(parts)} if parts else {})
        target = RunFolder(place.evaluations / label(changes)) if changes else place
        return finish(subject, place, progress or NoProgress(), target, parts, keep=keep)


def _lock_if_writable(place: RunFolder, stack: ExitStack) -> bool:
    """Locks a run until the stack closes; returns whether its folder can be written to."""
    try:
        stack.enter_context(place.locked())
    except StorageError as error:
        warnings.warn(f"These numbers are not kept: {error}", BabnWarning, stacklevel=3)
        return False
    return True


def remeasure(folder: str | Path) -> Results:
    """Computes the results of a run again from its saved answers, without the model."""
    place = RunFolder(folder)
    experiment = place.experiment()
    task = find_task(experiment.task, experiment.options)
    results = place.read_results()
    found = {
        (part, mode): task.load_predictions(place.answers / f"{part}-{mode}")
        for part, asked in results["measures"].items()
        for mode in asked
    }
    before, results["measures"] = results["measures"], measured(task, found)
    if not same_numbers(before, results["measures"]):
        try:
            write_json(place.results, results)
        except StorageError as error:
            warnings.warn(f"These numbers are not kept: {error}", BabnWarning, stacklevel=2)
    return results


def same_numbers(one: Any, other: Any) -> bool:
    """Whether measures are equal, where NaN is equal to NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def finish(
    subject: Subject,
    place: RunFolder,
    progress: Progress,
    target: RunFolder | None = None,
    parts: Sequence[str] = (),
    resume: bool = False,
    keep: bool = True,
) -> Results:
    """Asks a trained model about every part of its task's test data, and keeps all of it.

    Args:
        subject: The model.
        place: Its run.
        progress: Is told of every example.
        target: Where to keep answers and results; by default in the run.
        parts: Parts to ask about; by default all that the task is tested on.
        resume: Take the answers that are there already, from before an interruption.
        keep: Whether answers and results are written.
    """
    target, own = target or place, processes()
    found: dict[tuple[str, str], Predictions] = {}
    for part in parts or present_parts(subject):
        questions = cache(partial(Questions.of, subject, part))
        for mode in modes(subject):
            folder = target.answers / f"{part}-{mode}"
            kept = own.lead(partial(_kept_answers, subject.task, folder)) if resume else None
            if kept is not None:
                found[part, mode] = kept
                continue
            method = method_name(subject.experiment.rule, mode)
            answers = questions().answered(subject, mode, progress)
            answers = answers.named(method, subject.experiment.seed)
            found[part, mode] = answers
            if keep and own.first:
                _keep_answers(answers, folder)

    def results() -> Results:
        made = _results(subject, place, found)
        if keep:
            write_json(target.results, made)
        return made

    return own.lead(results)


def _results(
    subject: Subject, place: RunFolder, found: Mapping[tuple[str, str], Predictions]
) -> Results:
    return _summary(subject, place) | {
        "measures": measured(subject.task, found),
        "notes": {name: text for each in found.values() for name, text in each.notes().items()},
    }


def _kept_answers(task: Task[Any], folder: Path) -> Predictions | None:
    """The answers in a folder, if it has whole ones."""
    try:
        return task.load_predictions(folder) if folder.is_dir() else None
    except (FormatError, OSError):
        return None


def _keep_answers(answers: Predictions, folder: Path) -> None:
    """Writes answers beside those that are there, and moves them into their place."""
    beside = folder.with_name(f".{folder.name}{PARTIAL}")
    shutil.rmtree(beside, ignore_errors=True)
    answers.save(beside)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def measured(
    task: Task[Any], found: Mapping[tuple[str, str], Predictions]
) -> dict[str, dict[str, dict[str, float]]]:
    """Measures by part and mode: those of each part's answers, and those of all parts together."""
    measures: dict[str, dict[str, dict[str, float]]] = {}
    for (part, mode), answers in found.items():
        measures.setdefault(part, {})[mode] = answers.measure()
    for mode in dict.fromkeys(mode for _, mode in found):
        together = task.across({part: each for (part, m), each in found.items() if m == mode})
        for part, more in together.items():
            measures[part][mode] |= more
    return measures


def present_parts(subject: Subject) -> list[str]:
    """The parts that the task is tested on, without those that the data does not have."""
    first, *others = subject.task.test_parts
    return [first, *(part for part in others if subject.task.has(subject.experiment.data, part))]


def _prepare(
    place: RunFolder, experiment: Experiment, resume: bool, overwrite: bool, heading: str
) -> None:
    """Makes sure that the experiment may use the folder."""
    if place.state == "absent":
        place.check_free()
        return
    if overwrite:
        place.begin_again(experiment, heading)
        return
    if not resume:
        remedy = "--overwrite begins again"
        if place.state == "unfinished":
            remedy = f"--resume goes on with it, {remedy}"
        raise RunError(f"{place.path} holds a run that is {place.state}: {remedy}.")
    check_same(place.experiment(), experiment, place.path)


def check_same(before: Experiment, now: Experiment, path: Path) -> None:
    """Refuses to go on with a run that was begun with other settings."""
    old, new = before.to_dict(), now.to_dict()
    changed = [
        f"{name}={old[name]!r} (now {new[name]!r})" for name in old if old[name] != new[name]
    ]
    if changed:
        raise ConfigError(
            f"{path} was begun with {', '.join(changed)}. Resume with the same, or give another "
            "folder with --out."
        )


def _begin(stage: Stage, place: RunFolder, heading: str, processes: int) -> None:
    """Writes what the run depends on, or refuses to go on with other training data."""
    if place.state == "absent":
        place.begin(stage.experiment, heading)
    data = {"origin": stage.train.origin, "fingerprint": stage.train.fingerprint}
    before = place.read_environment().get("training_data")
    same = isinstance(before, dict) and before.get("fingerprint") == data["fingerprint"]
    if before is not None and not same and find_checkpoints(place.checkpoints):
        raise DataError(
            f"{place.path} was begun with other training data: {before} (now {data}). Resume with "
            "the same, or give another folder with --out."
        )
    if not same:
        about = {"training_data": data, "processes": processes}
        write_json(place.environment, environment() | about)


def _save_model(stage: Stage, folder: Path) -> None:
    """Writes model and tokenizer beside, and moves them into place."""
    beside = folder.with_name(".model")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with quiet():
            stage.model.save_pretrained(beside)  # type: ignore[operator]
            stage.tokenizer.save_pretrained(beside)
        note_files(beside)
    except Exception as error:  # a full disk shows in transformers in many ways
        shutil.rmtree(beside, ignore_errors=True)
        raise StorageError.of(folder, error) from error
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def _summary(subject: Subject, place: RunFolder) -> Results:
    experiment, lines = subject.experiment, read_log(place)
    seconds = _median(lines, "seconds_per_step")
    return {
        "task": experiment.task,
        "model": experiment.model,
        "rule": experiment.rule,
        "seed": experiment.seed,
        "data": experiment.data,
        "samples": experiment.samples,
        "scores": list(subject.task.scores),
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "steps": lines[-1]["step"] if lines else 0,
        "seconds_per_step": seconds,
        "words_per_second": _median(lines, "words_per_second"),
    }


def _median(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The median of what the log says, without what happens only once: compiling, allocating."""
    found = [line[name] for line in lines if name in line]
    return statistics.median(found[1:] or found) if found else None
