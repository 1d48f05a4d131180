"""Attacks example after example, and keeps every result."""

import time
from collections.abc import Callable, Sequence

from babn.attention.noise_source import fold_in
from babn.progress import Progress
from babn_paper.attacks.attack_loop import Attacker, Attempt, ExampleError
from babn_paper.attacks.examples import Target
from babn_paper.attacks.attack_folder import AttackFolder
from babn_paper.attacks.attack_records import AttackRecord, Outcome
from babn_paper.attacks.victim import Victim
from babn_paper.attacks.attack_records import count_words, words_changed

MakeAttacker = Callable[[Victim], Attacker]


def attack_all(
    place: AttackFolder,
    targets: Sequence[Target],
    victim: Victim,
    make_attacker: MakeAttacker,
    names: Sequence[str],
    progress: Progress,
) -> None:
    """Attacks what has not been attacked yet.

    Every example has seeds of its own, so that it ends the same whether or not the work was
    interrupted before it.

    Args:
        place: Where results are kept.
        targets: The examples in order.
        victim: The model.
        make_attacker: Makes the attacker; not called if nothing is left to do.
        names: Of the classes.
        progress: Is told of every example.
    """
    done = {record.place for record in place.read()}
    waiting = [target for target in targets if target.place not in done]
    progress.begin(place.path.name, len(targets), len(targets) - len(waiting))
    attacker = make_attacker(victim) if any(not each.problem for each in waiting) else None
    for target in waiting:
        record = _refused(target, target.problem, names)
        if attacker is not None and not target.problem:
            record = attack_one(attacker, victim, target, names)
        place.add(record)
        progress.step(1, record.outcome)


def attack_one(
    attacker: Attacker, victim: Victim, target: Target, names: Sequence[str]
) -> AttackRecord:
    """What comes of one example, also if it cannot be attacked."""
    victim.begin(target.place)
    start = time.perf_counter()
    try:
        seed = fold_in(victim.plan.seed, target.place)
        attempt = attacker.attack(target.texts, target.label, seed)
    except ExampleError as error:
        return _refused(target, str(error), names)
    return AttackRecord(
        place=target.place,
        outcome=_outcome(attempt),
        label=names[target.label],
        before=_answer(attempt.probs_before, names),
        after=_answer(attempt.probs_after, names),
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


def _outcome(attempt: Attempt) -> Outcome:
    if attempt.skipped:
        return "skipped"
    return "success" if attempt.succeeded else "failed"


def _holds(victim: Victim, attempt: Attempt, label: int) -> bool | None:
    """Whether a successful attack is more than the luck of one draw."""
    if not attempt.succeeded:
        return None
    return int(victim([tuple(attempt.texts.values())]).argmax()) != label


def _answer(probs: Sequence[float], names: Sequence[str]) -> str:
    return names[max(range(len(probs)), key=probs.__getitem__)]


def _refused(target: Target, reason: str, names: Sequence[str]) -> AttackRecord:
    return AttackRecord(
        place=target.place,
        outcome="error",
        label=names[target.label] if target.label >= 0 else "",
        original=dict(target.texts),
        words=sum(map(count_words, target.texts.values())),
        error=reason,
    )
