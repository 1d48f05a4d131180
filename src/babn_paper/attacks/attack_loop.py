"""The attack loop: attacks one example after another and saves every result."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from babn.attention.noise_source import fold_in
from babn.errors import BabnError
from babn.progress import Progress
from babn_paper.attacks.attack_records import (
    AttackFolder,
    AttackRecord,
    count_words,
    words_changed,
)
from babn_paper.attacks.victim import Target, Victim


class ExampleError(BabnError, ValueError):
    """An attacker cannot handle an example; others may be fine."""


@dataclass(frozen=True)
class Attempt:
    """The result of attacking one example.

    Attributes:
        skipped: Whether the model was wrong on the original texts.
        succeeded: Whether the model was right on the original texts and is wrong on the new ones.
        texts: The perturbed texts by column.
        probs_before: Class probabilities of the original texts.
        probs_after: Class probabilities of the perturbed texts, as the attacker received them.
        queries: Number of queries to the model.
    """

    skipped: bool
    succeeded: bool
    texts: Mapping[str, str]
    probs_before: tuple[float, ...]
    probs_after: tuple[float, ...]
    queries: int


class Attacker(ABC):
    """Perturbs texts until the victim misclassifies them."""

    @abstractmethod
    def attack(self, texts: Mapping[str, str], label: int, seed: int) -> Attempt:
        """Attacks one example.

        Args:
            texts: Its texts by column.
            label: The true class.
            seed: Seed of the attacker's random choices.

        Raises:
            ExampleError: If the attacker cannot handle the example.
        """


MakeAttacker = Callable[[Victim], Attacker]


def attack_all(
    place: AttackFolder,
    targets: Sequence[Target],
    victim: Victim,
    make_attacker: MakeAttacker,
    names: Sequence[str],
    progress: Progress,
) -> None:
    """Attacks the examples that have no record yet.

    Every example has its own seeds, so that its result does not depend on interruptions.

    Args:
        place: Folder of the records.
        targets: The examples in order.
        victim: The model.
        make_attacker: Makes the attacker; not called if all examples have records.
        names: Names of the classes.
        progress: Receives the number of finished examples.
    """
    done = {record.place for record in place.read()}
    waiting = [target for target in targets if target.place not in done]
    progress.begin(place.path.name, len(targets), len(targets) - len(waiting))
    attacker = make_attacker(victim) if any(not each.problem for each in waiting) else None
    for target in waiting:
        record = _failed_record(target, target.problem, names)
        if attacker is not None and not target.problem:
            record = attack_one(attacker, victim, target, names)
        place.add(record)
        progress.step(1, record.outcome)


def attack_one(
    attacker: Attacker, victim: Victim, target: Target, names: Sequence[str]
) -> AttackRecord:
    """Attacks one example and returns its record."""
    victim.begin(target.place)
    start = time.perf_counter()
    try:
        seed = fold_in(victim.plan.seed, target.place)
        attempt = attacker.attack(target.texts, target.label, seed)
    except ExampleError as error:
        return _failed_record(target, str(error), names)
    return AttackRecord(
        place=target.place,
        outcome="skipped" if attempt.skipped else "success" if attempt.succeeded else "failed",
        label=names[target.label],
        before=_predicted(attempt.probs_before, names),
        after=_predicted(attempt.probs_after, names),
        original=dict(target.texts),
        perturbed=dict(attempt.texts),
        probs_before=list(attempt.probs_before),
        probs_after=list(attempt.probs_after),
        holds=_holds(victim, attempt, target.label),
        queries=attempt.queries,
        words=sum(map(count_words, target.texts.values())),
        changed=sum(
            words_changed(target.texts[name], attempt.texts[name]) for name in target.texts
        ),
        seconds=round(time.perf_counter() - start, 3),
    )


def _holds(victim: Victim, attempt: Attempt, label: int) -> bool | None:
    """Whether a successful attack also fools the model in a new query, with new noise."""
    if not attempt.succeeded:
        return None
    return int(victim([tuple(attempt.texts.values())]).argmax()) != label


def _predicted(probs: Sequence[float], names: Sequence[str]) -> str:
    return names[max(range(len(probs)), key=probs.__getitem__)]


def _failed_record(target: Target, reason: str, names: Sequence[str]) -> AttackRecord:
    """The record of an example that cannot be attacked."""
    return AttackRecord(
        place=target.place,
        outcome="error",
        label=names[target.label] if target.label >= 0 else "",
        original=dict(target.texts),
        words=sum(map(count_words, target.texts.values())),
        error=reason,
    )
