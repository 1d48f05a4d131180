"""Runs of a second, and an attacker without TextAttack."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from babn_paper.attacks.attack_loop import Attacker, Attempt, ExampleError
from babn_paper.attacks.attack_records import AttackFolder
from babn_paper.attacks.plan import Plan, Recipe
from babn_paper.attacks.resources import Provider
from babn_paper.attacks.victim import Victim
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import TaskModel, load_task_model

FIELDS: dict[str, Any] = {
    "model": "small",
    "data": "builtin",
    "steps": 30,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "max_length": 24,
    "samples": 3,
}


def train(folder: Path, **fields: Any) -> Path:
    run(Experiment.from_dict(FIELDS | {"task": "sst2"} | fields), folder)
    return folder


def subject_of(run: Path) -> TaskModel:
    place = RunFolder(run)
    return load_task_model(place.experiment(), place.model)


class Repeater(Attacker):
    """Writes the other classes' words in place of the text's own, one word after the other.

    Cannot handle texts with the word "unspeakable".
    """

    made = 0

    def __init__(self, victim: Victim) -> None:
        type(self).made += 1
        self.victim = victim

    def attack(self, texts: Mapping[str, str], label: int, seed: int) -> Attempt:
        if any("unspeakable" in text for text in texts.values()):
            raise ExampleError("cannot speak of it")
        before = self._ask(texts)
        wrong = max(range(len(before)), key=before.__getitem__) != label
        best, probs = dict(texts), before
        column = next(iter(texts))
        words = texts[column].split()
        for place in range(0 if wrong else len(words)):
            if max(range(len(probs)), key=probs.__getitem__) != label:
                break
            words[place] = "terrible" if label else "wonderful"
            best = {**texts, column: " ".join(words)}
            probs = self._ask(best)
        fooled = max(range(len(probs)), key=probs.__getitem__) != label
        return Attempt(wrong, fooled and not wrong, best, before, probs, self.victim.queries)

    def _ask(self, texts: Mapping[str, str]) -> tuple[float, ...]:
        return tuple(self.victim([tuple(texts.values())])[0].tolist())


def repeater(recipe: Recipe, victim: Victim, provider: Provider) -> Attacker:
    return Repeater(victim)


def lines(run: Path, plan: Plan | None = None) -> list[dict[str, Any]]:
    """Records without the time they took."""
    place = AttackFolder.of(run, plan or Plan(recipe="textfooler"))
    return [{**vars(record), "seconds": 0} for record in place.read()]
