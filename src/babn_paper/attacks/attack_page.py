"""The HTML page of an attack, with original and perturbed texts side by side."""

from collections.abc import Iterator, Sequence
from typing import Any

from babn.evaluation.html_pages import Markup, document, element, join
from babn.evaluation.tables import Table
from babn.files import replace_text
from babn_paper.attacks.attack_records import (
    AttackFolder,
    AttackRecord,
    Outcome,
    align_words,
    shown_numbers,
)
from babn_paper.attacks.plan import RECIPES, Plan
from babn_paper.experiments.naming import attention_name
from babn_paper.tasks.catalogue import find_task

AUTHOR = "babn attack"

HEADINGS: dict[Outcome, str] = {
    "success": "Fooled",
    "failed": "Not fooled",
    "skipped": "Wrong before the attack",
    "error": "Could not be attacked",
}

PLAN = ("recipe", "threat", "samples", "seed", "part")

EXPLANATION = (
    "Failed attacks are a share of all attacks on texts that the model classifies correctly; texts "
    "that it misclassifies before any change are skipped. Accuracy under attack is over all texts "
    "except those that could not be attacked. Changed words are counted in successful attacks. A "
    "success holds if the perturbed text fools the model in a second query, with new noise; with "
    "two queries an attack fails unless its success holds."
)

SUBSTITUTED = (
    "Some resources replace those of the recipe, so the numbers can be compared between models "
    "attacked with the same resources, but not with published numbers."
)


def write_page(place: AttackFolder, records: Sequence[AttackRecord]) -> None:
    """Writes the page of a finished attack."""
    description = place.describe()
    title = _title(description)
    html = document(title, _body(title, description, records), AUTHOR)
    replace_text(place.page, html)


def resource_lines(identity: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and description of each resource, with the original that it stands in for."""
    for kind, each in identity["resources"].items():
        place = f", in place of {each['original']}" if each["substituted"] else ""
        fingerprint = f" ({each['fingerprint']})" if each["fingerprint"] else ""
        note = f"; {each['note']}" if each["note"] else ""
        yield kind.replace("masked_lm", "masked LM"), f"{each['name']}{fingerprint}{place}{note}"


def _title(description: dict[str, Any]) -> str:
    recipe = RECIPES[description["identity"]["recipe"]]
    task = find_task(description["task"]).title
    return f"{recipe} against {attention_name(description['method'])} on {task}"


def _body(title: str, description: dict[str, Any], records: Sequence[AttackRecord]) -> Markup:
    identity = description["identity"]
    plan = Plan(**{name: identity[name] for name in PLAN})
    shown = shown_numbers(description["summary"])
    table = Table(["", *shown], [[plan.threat, *shown.values()]])
    parts = [
        element("h1", title),
        element("p", f"Threat model: {plan.explanation}."),
        element("div", table.html(), class_="scroll dense"),
        element("p", EXPLANATION, class_="muted"),
        element("h2", "Resources and settings"),
    ]
    if any(each["substituted"] for each in identity["resources"].values()):
        parts.append(element("p", SUBSTITUTED))
    about = [*resource_lines(identity), *_settings(description, plan)]
    items = (join(element("dt", name), element("dd", text)) for name, text in about)
    parts.append(element("dl", *items))
    for outcome, heading in HEADINGS.items():
        parts += _section(heading, [record for record in records if record.outcome == outcome])
    return join(*parts)


def _settings(description: dict[str, Any], plan: Plan) -> Iterator[tuple[str, str]]:
    versions = description["environment"]["versions"]
    yield "examples", f"{description['examples']} of {plan.part}, seed {plan.seed}"
    yield "data", f"{description['data_origin']} ({description['identity']['data']})"
    yield "model", f"{description['base']} ({description['identity']['model']})"
    yield "versions", ", ".join(f"{name} {number}" for name, number in versions.items())


def _section(heading: str, records: Sequence[AttackRecord]) -> list[Markup]:
    if not records:
        return []
    return [element("h2", f"{heading} ({len(records)})"), *map(_figure, records)]


def _figure(record: AttackRecord) -> Markup:
    if record.outcome in ("error", "skipped"):
        note = record.error or f"{record.before} for {record.label}"
        texts = join(*(element("p", text or "(empty)") for text in record.original.values()))
        return element("figure", texts, _caption(record, note))
    sides = [_changes(record.original, record.perturbed, side) for side in (0, 1)]
    before = _prediction(record.before, record.probs_before)
    after = _prediction(record.after, record.probs_after)
    columns = [
        element("div", element("h3", prediction), side)
        for prediction, side in zip((before, after), sides, strict=True)
    ]
    note = f"{record.label}; {record.changed} of {record.words} words, {record.queries} queries"
    if record.holds is False:
        note += "; the model was right in a second query"
    return element("figure", element("div", *columns, class_="row"), _caption(record, note))


def _changes(before: dict[str, str], after: dict[str, str], side: int) -> Markup:
    """One side of a pair, with its changed words marked."""
    lines = []
    for column in before:
        words: list[str] = []
        for *both, differ in align_words(before[column], after[column]):
            text = " ".join(both[side])
            if text:
                words += [element("mark", text) if differ else text, " "]
        lines.append(element("p", *words))
    return join(*lines)


def _caption(record: AttackRecord, note: str) -> Markup:
    return element("figcaption", f"Example {record.place}: {note}")


def _prediction(name: str, probs: Sequence[float]) -> str:
    return f"{name} {max(probs):.0%}" if probs else name
