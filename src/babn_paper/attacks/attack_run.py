"""Attacks on the model of a run, from its folder to a page."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from babn.errors import ConfigError
from babn.progress import NoProgress, Progress
from babn.text.pretrained import quiet
from babn.validation import check_count
from babn_paper.attacks.attack_loop import Attacker
from babn_paper.attacks.attack_loop import attack_all
from babn_paper.attacks.examples import Targets, check_task, class_names, read_targets
from babn_paper.attacks.attack_folder import AttackFolder
from babn_paper.attacks.local_resources import LocalResources, fingerprint
from babn_paper.attacks.attack_page import write_page
from babn_paper.attacks.plan import Plan, Recipe, threats_for
from babn_paper.attacks.attack_records import of_places
from babn_paper.attacks.resources import Downloads, Provider
from babn_paper.attacks.attack_records import Summary, summarise
from babn_paper.attacks.victim import Victim
from babn_paper.experiments.environment import environment
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run_folder import RunError, RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model
from babn_paper.tasks.catalogue import find_task

MakeAttacker = Callable[[Recipe, Victim, Provider], Attacker]


@dataclass(frozen=True)
class Attacked:
    """A finished attack.

    Attributes:
        plan: How the model was attacked.
        folder: Where everything is kept.
        summary: The numbers.
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
    """Attacks the model of a finished run, and returns what came of each threat.

    What was attacked before is not attacked again, so that the same call goes on after an
    interruption, and one with more examples adds to those that are there.

    Args:
        run: The run's folder.
        recipe: How texts are changed.
        examples: How many to attack; fewer if the part has fewer.
        threat: What answers a query, or several answers with commas between them; by default all
            that apply, one after the other.
        samples: Samples of attention for the average; by default as many as the run is tested with.
        seed: Decides which examples are attacked, and all noise.
        part: The part of the data that they are taken from.
        data: Where to read it; by default where the run did.
        resources: Folder with word vectors, encoder and so on; by default TextAttack downloads its
            own.
        overwrite: Begin again.
        progress: Is told of every example.
        make_attacker: Makes the attacker; by default TextAttack's.
    """
    check_count("examples", examples)
    place = Path(run)
    experiment = _experiment(place, data)
    task = check_task(find_task(experiment.task))
    plans = list(_plans(experiment, recipe, threat, samples, seed, part))
    provider = LocalResources(resources) if resources is not None else Downloads()
    used = {kind: each.to_dict() for kind, each in provider.describe(recipe).items()}
    targets = read_targets(task, experiment.data, part, seed)
    with quiet():
        task_model = load_task_model(experiment, RunFolder(place).model)
    campaign = _Campaign(
        run=place,
        task_model=task_model,
        targets=targets,
        examples=examples,
        identity=_identity(place, task_model, targets) | {"resources": used},
        make_attacker=lambda victim: (make_attacker or _textattack)(recipe, victim, provider),
        progress=progress or NoProgress(),
    )
    return [campaign.carry_out(plan, overwrite) for plan in plans]


@dataclass(frozen=True, kw_only=True)
class _Campaign:
    """Attacks that differ in their threat only."""

    run: Path
    task_model: TaskModel
    targets: Targets
    examples: int
    identity: dict[str, Any]
    make_attacker: Callable[[Victim], Attacker]
    progress: Progress

    def carry_out(self, plan: Plan, overwrite: bool) -> Attacked:
        """Attacks what is left, and writes numbers and page."""
        place = AttackFolder.of(self.run, plan)
        names = class_names(self.targets.task)
        chosen = list(self.targets.first(self.examples))
        with place.locked():
            victim, make = Victim(self.task_model, plan), self.make_attacker
            if overwrite:
                # Before anything is taken away, everything for the new attack is there.
                ready = make(victim)
                make = lambda _: ready  # noqa: E731
                place.clear()
            place.begin(plan.to_dict() | self.identity, self._description(names, len(chosen)))
            attack_all(place, chosen, victim, make, names, self.progress)
            records = of_places(place.read(), [target.place for target in chosen])
            summary = summarise(records)
            place.finish(summary)
            write_page(place, records)
        return Attacked(plan, place, summary)

    def _description(self, names: tuple[str, ...], examples: int) -> dict[str, Any]:
        experiment = self.task_model.experiment
        return {
            "task": experiment.task,
            "base": Path(experiment.model).name,
            "rule": experiment.rule,
            "trained_with_seed": experiment.seed,
            "classes": list(names),
            "data_origin": self.targets.origin,
            "examples": examples,
            "environment": _environment(),
        }


def _experiment(run: Path, data: str | None) -> Experiment:
    place = RunFolder(run)
    values = place.experiment().to_dict() | ({} if data is None else {"data": data})
    if not place.model.is_dir():
        raise RunError(
            f"{run} has no model: it is unfinished, or was run with keep_model=false. Finish it "
            "with babn train --resume."
        )
    return Experiment.from_dict(values)


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
        raise ConfigError(f"samples={samples} has no use with {' and '.join(threats)}.")
    for each in threats:
        count = (experiment.samples if samples is None else samples) if each == "average" else 1
        yield Plan(recipe=recipe, threat=each, samples=count, seed=seed, part=part)


def _identity(run: Path, task_model: TaskModel, targets: Targets) -> dict[str, Any]:
    """What decides the records beside the plan."""
    return {
        "model": fingerprint(RunFolder(run).model),
        "max_length": task_model.max_length,
        "data": targets.fingerprint,
    }


def _environment() -> dict[str, Any]:
    found = environment()
    for package in ("textattack", "nltk"):
        with suppress(PackageNotFoundError):
            found["versions"][package] = version(package)
    return found


def _textattack(recipe: Recipe, victim: Victim, provider: Provider) -> Attacker:
    from babn_paper.attacks.textattack_attacker import TextAttackAttacker

    return TextAttackAttacker(recipe, victim, provider)
