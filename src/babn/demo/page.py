"""The page that the demo writes: one file that needs nothing but itself."""

from babn.demo import report
from babn.demo.figures import entropy_section, example_section, reliability_section
from babn.demo.outcome import Outcome
from babn.evaluation.html_pages import Markup, document, element, join

AUTHOR = "babn demo"
"""Stands in the page, to tell it from one that someone else made."""

TITLE = "How sure is attention?"

STYLE = """
@media screen and (prefers-color-scheme: dark) {
  .paper { background: none; padding: 0; }
  .paper svg { filter: invert(0.91) hue-rotate(180deg); }
}
@media (max-width: 40rem) {
  .paper { overflow-x: auto; }
  .paper svg { max-width: none; min-width: 34rem; }
  figure { padding: 0.6rem; }
  dl { grid-template-columns: minmax(0, 1fr); }
  dd { margin-bottom: 0.5rem; }
  code { overflow-wrap: anywhere; }
  pre { overflow-x: auto; }
}
"""
"""Adds to the common style: charts in dark mode, and what scrolls on narrow screens."""


def page(outcome: Outcome, versions: dict[str, str]) -> str:
    """The whole page."""
    body = join(
        element("style", Markup(STYLE)),
        element("h1", TITLE),
        introduction(outcome),
        table_section(outcome),
        reliability_section(outcome),
        entropy_section(outcome),
        *(example_section(example) for example in outcome.examples),
        next_section(),
        footer(outcome, versions),
    )
    return document(f"{TITLE} (babn demo)", body, AUTHOR)


def introduction(outcome: Outcome) -> Markup:
    """What was done."""
    return join(
        element(
            "p",
            f"A classifier, {outcome.source.name}, was fine-tuned to sort short requests into "
            f"{len(outcome.intents)} intents, such as “set alarm” or “card lost”. Its softmax "
            "attention computes fixed weights. BABN (Bayesian attention belief networks) makes "
            "them random variables, so that a prediction is a set of samples that may disagree. "
            "The shortest way there needs no training:",
        ),
        element("pre", element("code", "\n".join(report.SHORTEST))),
        element(
            "p",
            "Another copy of the model was fine-tuned as BABN. All then predicted requests "
            "without one right intent as well: out-of-scope ones, which have none of the intents, "
            "and ambiguous ones, which two intents fit. A model that knows its limits is less sure "
            "of those.",
        ),
    )


def table_section(outcome: Outcome) -> Markup:
    """The table, its legend, and what it does and does not show."""
    return join(
        element("h2", "The numbers"),
        element("div", _table(outcome), class_="scroll"),
        _legend(),
        element("p", f"{report.heading(outcome)}:"),
        element("ul", *(element("li", verdict) for verdict in report.verdicts(outcome))),
        element("p", report.caveat(outcome), class_="muted"),
    )


def _table(outcome: Outcome) -> Markup:
    names = ["attention", *(column.name for column in report.COLUMNS)]
    head = element("tr", *(element("th", name, scope="col") for name in names))
    rows = [
        element(
            "tr",
            element("th", row.name, scope="row"),
            *(element("td", column.show(row)) for column in report.COLUMNS),
        )
        for row in outcome.rows
    ]
    caption = element("caption", report.tested_on(outcome))
    return element("table", caption, element("thead", head), element("tbody", *rows))


def _legend() -> Markup:
    entries = []
    for column in report.COLUMNS:
        goal = f"; {column.goal}" if column.goal else ""
        entries += [element("dt", column.name), element("dd", f"{column.meaning}{goal}")]
    return element("dl", *entries)


def next_section() -> Markup:
    """What to do next."""
    entries = []
    for command, meaning in report.NEXT:
        entries += [element("dt", element("code", command)), element("dd", meaning)]
    return join(element("h2", "Next"), element("dl", *entries))


def footer(outcome: Outcome, versions: dict[str, str]) -> Markup:
    """How the page came about."""
    recipe = outcome.recipe
    parts = ", ".join(f"{name} {value}" for name, value in versions.items())
    return element(
        "footer",
        element(
            "p",
            "Written by ",
            element("code", "babn demo"),
            f" with seed {outcome.settings.seed}, {recipe.epochs} epochs, batches of "
            f"{recipe.batch_size} and learning rate {recipe.rate:g}; all numbers are in ",
            element("code", "results.json"),
            f" beside this page. {parts}.",
        ),
    )
