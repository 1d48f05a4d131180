"""A page that shows original and changed texts side by side."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from babn.evaluation.markup import Markup, element, join
from babn.evaluation.page import document
from babn.evaluation.tables import Table
from babn.files import replace_text
from babn_paper.attacks.attack_folder import AttackFolder
from babn_paper.attacks.plan import RECIPES, Plan
from babn_paper.attacks.attack_records import AttackRecord, Outcome
from babn_paper.attacks.attack_records import Summary
from babn_paper.attacks.attack_records import aligned
from babn_paper.experiments.naming import rule_name
from babn_paper.tasks.catalogue import find_task

AUTHOR = "babn attack"

HEADINGS: dict[Outcome, str] = {
    "success": "Fooled",
    "failed": "Not fooled",
    "skipped": "Wrong already",
    "error": "Could not be attacked",
}

PLAN = ("recipe", "threat", "samples", "seed", "part")

SUBSTITUTED = (
    "Some resources stand in for the recipe's own. The numbers compare models attacked with the "
    "same resources, and not with published ones."
)


def write_page(place: AttackFolder, records: Sequence[AttackRecord]) -> None:
    """Writes the page of a finished attack."""
    description = place.describe()
    title = _title(description)
    html = document(title, _body(title, description, records), AUTHOR)
    replace_text(place.page, html)


def numbers(summary: Summary) -> dict[str, str]:
    """The numbers of an attack as people read them; those that are not defined are left out."""
    shown = {
        "failed attacks": _percent(summary["failed_share"]),
        "accuracy before": _percent(summary["accuracy"]),
        "accuracy under attack": _percent(summary["accuracy_under_attack"]),
        "words changed": _percent(summary["changed_share"]),
        "queries": _plain(summary["queries"]),
        "success holds": _percent(summary["holds"]),
        "failed, asked twice": _percent(failed_twice(summary)),
    }
    counts = {name: str(summary[name]) for name in ("success", "failed", "skipped", "errors")}
    return {name: value for name, value in shown.items() if value} | counts


def failed_twice(summary: Summary) -> float:
    """Share of attacks that fail, or succeed with a text that does not fool the model again."""
    attacks = summary["success"] + summary["failed"]
    held = summary["success"] * summary["holds"] if summary["success"] else 0.0
    return 1 - held / attacks if attacks else math.nan


def resource_lines(identity: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was used, and in place of what."""
    for kind, each in identity["resources"].items():
        place = f", in place of {each['original']}" if each["substituted"] else ""
        print_ = f" ({each['fingerprint']})" if each["fingerprint"] else ""
        note = f"; {each['note']}" if each["note"] else ""
        yield kind.replace("masked_lm", "masked LM"), f"{each['name']}{print_}{place}{note}"


def _title(description: dict[str, Any]) -> str:
    recipe = RECIPES[description["identity"]["recipe"]]
    task = find_task(description["task"]).title
    return f"{recipe} against {rule_name(description['rule'])} on {task}"


def _body(title: str, description: dict[str, Any], records: Sequence[AttackRecord]) -> Markup:
    identity = description["identity"]
    plan = Plan(**{name: identity[name] for name in PLAN})
    shown = numbers(description["summary"])
    table = Table(["", *shown], [[plan.threat, *shown.values()]])
    parts = [
        element("h1", title),
        element("p", f"Threat model: {plan.explanation}."),
        element("div", Markup(table.html()), class_="scroll dense"),
        element("p", _explanation(), class_="muted"),
        element("h2", "What was used"),
    ]
    if any(each["substituted"] for each in identity["resources"].values()):
        parts.append(element("p", SUBSTITUTED))
    parts.append(_definitions([*resource_lines(identity), *_settings(description, plan)]))
    for outcome, heading in HEADINGS.items():
        parts += _section(heading, [record for record in records if record.outcome == outcome])
    return join(*parts)


def _explanation() -> str:
    return (
        "Failed attacks are those among all attacks on texts that the model got right; texts that "
        "it got wrong before anything was changed are skipped. Accuracy under attack is over all "
        "texts but those that could not be attacked. Words changed are counted for successful "
        "attacks. A success holds if the changed text fools the model once more, asked afresh; "
        "asked twice, an attack fails unless it does."
    )


def _settings(description: dict[str, Any], plan: Plan) -> Iterator[tuple[str, str]]:
    versions = description["environment"]["versions"]
    yield "examples", f"{description['examples']} of {plan.part}, seed {plan.seed}"
    yield "data", f"{description['data_origin']} ({description['identity']['data']})"
    yield "model", f"{description['base']} ({description['identity']['model']})"
    yield "versions", ", ".join(f"{name} {number}" for name, number in versions.items())


def _definitions(pairs: Sequence[tuple[str, str]]) -> Markup:
    return element("dl", *(join(element("dt", name), element("dd", text)) for name, text in pairs))


def _section(heading: str, records: Sequence[AttackRecord]) -> list[Markup]:
    if not records:
        return []
    return [element("h2", f"{heading} ({len(records)})"), *map(_figure, records)]


def _figure(record: AttackRecord) -> Markup:
    if record.outcome in ("error", "skipped"):
        told = record.error or f"{record.before} for {record.label}"
        caption = element("figcaption", _place(record, told))
        return element("figure", _texts(record.original), caption)
    sides = [_changes(record.original, record.perturbed, side) for side in (0, 1)]
    before = _answer(record.before, record.probs_before)
    after = _answer(record.after, record.probs_after)
    columns = [
        element("div", element("h3", answer), side)
        for answer, side in zip((before, after), sides, strict=True)
    ]
    told = f"{record.label}; {record.changed} of {record.words} words, {record.queries} queries"
    if record.holds is False:
        told += "; asked once more, the model was right"
    caption = element("figcaption", _place(record, told))
    return element("figure", element("div", *columns, class_="row"), caption)


def _changes(before: dict[str, str], after: dict[str, str], side: int) -> Markup:
    """One side of a pair, its changed words marked."""
    lines = []
    for column in before:
        words: list[str] = []
        for *both, differ in aligned(before[column], after[column]):
            stretch = " ".join(both[side])
            if stretch:
                words += [element("mark", stretch) if differ else stretch, " "]
        lines.append(element("p", *words))
    return join(*lines)


def _texts(texts: dict[str, str]) -> Markup:
    return join(*(element("p", text or "(empty)") for text in texts.values()))


def _place(record: AttackRecord, told: str) -> str:
    return f"Example {record.place}: {told}"


def _answer(name: str, probs: Sequence[float]) -> str:
    return f"{name} {max(probs):.0%}" if probs else name


def _percent(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.1%}"


def _plain(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.1f}"
