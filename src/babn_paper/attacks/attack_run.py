"""Attacks the models of runs, one or many in parallel; writes records, summary and page."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from babn.errors import BabnError, ConfigError, one_line
from babn.progress import Progress, sigint_blocked
from babn.text import quiet
from babn.validation import check_count
from babn_paper.attacks.attack_loop import Attacker, attack_all
from babn_paper.attacks.attack_page import write_page
from babn_paper.attacks.attack_records import AttackFolder, Summary, select_records, summarise
from babn_paper.attacks.local_resources import LocalResources, fingerprint
from babn_paper.attacks.plan import RECIPES, Plan, Recipe, threats_for
from babn_paper.attacks.resources import Provider
from babn_paper.attacks.victim import Targets, Victim, check_task, class_names, read_targets
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.naming import method_of
from babn_paper.experiments.run_folder import RunFolder, environment
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.catalogue import find_task

MakeAttacker = Callable[[Recipe, Victim, Provider], Attacker]


@dataclass(frozen=True)
class Attacked:
    """A finished attack.

    Attributes:
        plan: The plan.
        folder: The folder with all results.
        summary: The summary statistics.
    """

    plan: Plan
    folder: AttackFolder
    summary: Summary


def attack(
    run: str | Path,
    recipe: Recipe,
    *,
    examples: int = 1000,
    threat: str | None = None,
    samples: int | None = None,
    seed: int = 0,
    part: str = "dev",
    data: str | None = None,
    resources: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    make_attacker: MakeAttacker | None = None,
) -> list[Attacked]:
    """Attacks the model of a finished run under one or more threat models.

    Attacked examples are not attacked again: the same call continues after an interruption, and one
    with more examples adds to the existing ones.

    Args:
        run: The run's folder.
        recipe: The attack recipe.
        examples: Number of examples to attack; fewer if the part has fewer.
        threat: Comma-separated threat models; by default all that apply to the model.
        samples: Samples of attention of `"average"`; by default as many as in the run's tests.
        seed: Seed of the choice of examples and of all noise.
        part: The part of the data that examples are taken from.
        data: Source of the data; by default as in the run.
        resources: Folder with word vectors, sentence encoder and so on; by default TextAttack
            downloads its own.
        overwrite: Replace existing attacks.
        progress: Receives the number of finished examples.
        make_attacker: Makes the attacker; TextAttack's by default.
    """
    check_count("examples", examples)
    folder = RunFolder(run)
    changes = {} if data is None else {"data": data}
    experiment = Experiment.from_dict(folder.experiment().to_dict() | changes)
    model = folder.trained_model()
    task = check_task(find_task(experiment.task, experiment.options))
    plans = list(_plans(experiment, recipe, threat, samples, seed, part))
    provider = LocalResources(resources) if resources is not None else Provider()
    used = {kind: asdict(each) for kind, each in provider.describe(recipe).items()}
    targets = read_targets(task, experiment.data, part, seed)
    with quiet():
        task_model = load_task_model(experiment, model)
    campaign = _Campaign(
        run=Path(run),
        task_model=task_model,
        targets=targets,
        examples=examples,
        identity={
            "model": fingerprint(model),
            "max_length": task_model.max_length,
            "data": targets.fingerprint,
            "resources": used,
        },
        make_attacker=lambda victim: (make_attacker or _textattack)(recipe, victim, provider),
        progress=progress or Progress(),
    )
    return [campaign.carry_out(plan, overwrite) for plan in plans]


@dataclass(frozen=True, kw_only=True)
class _Campaign:
    """Attacks that differ only in their threat model.

    Attributes:
        identity: What determines the records, besides the plan.
    """

    run: Path
    task_model: TaskModel
    targets: Targets
    examples: int
    identity: dict[str, Any]
    make_attacker: Callable[[Victim], Attacker]
    progress: Progress

    def carry_out(self, plan: Plan, overwrite: bool) -> Attacked:
        """Attacks the remaining examples and writes summary and page."""
        place = AttackFolder.of(self.run, plan)
        names = class_names(self.targets.task)
        chosen = list(self.targets.first(self.examples))
        with place.locked():
            victim, make = Victim(self.task_model, plan), self.make_attacker
            if overwrite:
                # The new attacker is ready before anything is deleted.
                ready = make(victim)
                make = lambda _: ready  # noqa: E731
                place.clear()
            place.begin(asdict(plan) | self.identity, self._description(names, len(chosen)))
            attack_all(place, chosen, victim, make, names, self.progress)
            records = select_records(place.read(), [target.place for target in chosen])
            summary = summarise(records)
            place.finish(summary)
            write_page(place, records)
        return Attacked(plan, place, summary)

    def _description(self, names: tuple[str, ...], examples: int) -> dict[str, Any]:
        experiment = self.task_model.experiment
        return {
            "task": experiment.task,
            "base": Path(experiment.model).name,
            "method": method_of(experiment.to_dict()),
            "trained_with_seed": experiment.seed,
            "classes": list(names),
            "data_origin": self.targets.origin,
            "examples": examples,
            "environment": _environment(),
        }


def _plans(
    experiment: Experiment,
    recipe: Recipe,
    threat: str | None,
    samples: int | None,
    seed: int,
    part: str,
) -> Iterator[Plan]:
    threats = threats_for(experiment, threat)
    if samples is not None and "average" not in threats:
        raise ConfigError(f"samples={samples} does not apply to {' and '.join(threats)}.")
    for each in threats:
        count = (experiment.samples if samples is None else samples) if each == "average" else 1
        yield Plan(recipe=recipe, threat=each, samples=count, seed=seed, part=part)


def _environment() -> dict[str, Any]:
    found = environment()
    for package in ("textattack", "nltk"):
        with suppress(PackageNotFoundError):
            found["versions"][package] = version(package)
    return found


def _textattack(recipe: Recipe, victim: Victim, provider: Provider) -> Attacker:
    from babn_paper.attacks.textattack_attacker import TextAttackAttacker

    return TextAttackAttacker(recipe, victim, provider)


def parse_recipes(names: str) -> list[Recipe]:
    """Parses comma-separated recipes; `all` stands for all of them."""
    wanted = list(RECIPES) if names == "all" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in RECIPES]:
        known = ", ".join(RECIPES)
        raise ConfigError(f"recipe {unknown[0]} is not known. Choose from {known}, or all.")
    return [recipe for recipe in RECIPES if recipe in wanted]


def attack_many(
    runs: Sequence[Path], recipes: Sequence[Recipe], jobs: int, progress: Progress, **settings: Any
) -> list[str]:
    """Attacks every model by every recipe and returns the errors of failed attacks.

    A failed attack does not stop the others. Finished attacks are not repeated.

    Args:
        runs: Folders of finished runs.
        recipes: The attack recipes.
        jobs: Number of parallel attacks, each in its own process.
        progress: Receives every attack that ends.
        settings: Further arguments of `babn_paper.attacks.attack_run.attack`.
    """
    check_count("jobs", jobs)
    wanted = [(run, recipe) for run in runs for recipe in recipes]
    progress.begin("attacks", len(wanted))
    attempt = partial(_try_attack, settings)
    failures = []
    for (run, recipe), failure in _each(attempt, wanted, jobs):
        progress.step(1, f"{run} {recipe}")
        if failure:
            failures.append(f"{run}, {recipe}: {failure}")
    return failures


def _each(
    attempt: Callable[[tuple[Path, Recipe]], str], wanted: Sequence[tuple[Path, Recipe]], jobs: int
) -> Iterator[tuple[tuple[Path, Recipe], str]]:
    """Each attack with its error, in the order in which they end."""
    if jobs == 1:
        yield from ((each, attempt(each)) for each in wanted)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _init_worker, (threads,)) as pool:
        try:
            with sigint_blocked():  # workers start here and inherit the mask
                futures = {pool.submit(attempt, each): each for each in wanted}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():  # each has saved its finished examples
                worker.terminate()
            raise


def _init_worker(threads: int) -> None:
    """Initializes a worker process, which leaves SIGINT to its parent."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)


def _try_attack(settings: dict[str, Any], each: tuple[Path, Recipe]) -> str:
    """Attacks a model and returns the error message, or an empty string."""
    run, recipe = each
    try:
        attack(run, recipe, **settings)
    except (BabnError, OSError) as error:
        return one_line(error)
    return ""
