"""The page that the demo writes: one file that needs nothing but itself."""

from babn.demo import report
from babn.demo.figures import entropy_section, portrait_section, reliability_section
from babn.demo.outcome import Outcome
from babn.evaluation.markup import Markup, element, join
from babn.evaluation.page import document

AUTHOR = "babn demo"
"""Stands in the page, to tell it from one that someone else made."""

TITLE = "How sure is attention?"


def page(outcome: Outcome, versions: dict[str, str]) -> str:
    """The whole page."""
    body = join(
        element("h1", TITLE),
        introduction(outcome),
        table_section(outcome),
        reliability_section(outcome),
        entropy_section(outcome),
        *(portrait_section(portrait) for portrait in outcome.portraits),
        footer(outcome, versions),
    )
    return document(f"{TITLE} (babn demo)", body, AUTHOR)


def introduction(outcome: Outcome) -> Markup:
    """What was done, in one paragraph."""
    return element(
        "p",
        f"Three copies of {outcome.source.name} learned to sort short requests into "
        f"{len(outcome.intents)} intents, such as “set alarm” or “card lost”. They differ only in "
        "their attention: softmax computes fixed weights, while BAM and BABN treat the weights as "
        "random variables and can be asked many times. BAM adds noise of one fixed level; BABN "
        "(Bayesian attention belief networks) learns how noisy each weight should be. Then all "
        "three met requests without a right answer: out-of-scope ones that fit no intent, and "
        "ambiguous ones that fit two. A model that knows its limits is less sure of those.",
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
            f"{recipe.batch_size} and learning rate {recipe.encoder_rate:g}; all numbers are in ",
            element("code", "results.json"),
            f" beside this page. {parts}.",
        ),
    )
