"""Fills in `page.html`, the page that the demo writes: one file that needs nothing but itself."""

import math
from collections.abc import Iterable
from importlib.resources import files
from string import Template

from babn.demo import report
from babn.demo.figures import entropy_figure, example_section, reliability_figure
from babn.demo.outcome import Outcome
from babn.evaluation.html_pages import Markup, document, element, join

AUTHOR = "babn demo"
"""Identifies pages that the demo wrote."""

TITLE = "How sure is attention?"


def page(outcome: Outcome, versions: dict[str, str]) -> str:
    """The whole page."""
    values = {
        "title": TITLE,
        "model": outcome.source.name,
        "intents": str(len(outcome.intents)),
        "shortest": "\n".join(report.SHORTEST),
        "table": _table(outcome),
        "legend": _definitions((column.name, column.legend) for column in report.COLUMNS),
        "heading": report.heading(outcome),
        "verdicts": join(*(element("li", verdict) for verdict in report.verdicts(outcome))),
        "caveat": report.caveat(outcome),
        "reliability": reliability_figure(outcome),
        "ignorance": f"{math.log(len(outcome.intents)):.2f}",
        "entropy": entropy_figure(outcome),
        "examples": join(*(example_section(example) for example in outcome.examples)),
        "next": _definitions((element("code", command), text) for command, text in report.NEXT),
        "seed": str(outcome.settings.seed),
        "epochs": str(outcome.recipe.epochs),
        "batch_size": str(outcome.recipe.batch_size),
        "rate": f"{outcome.recipe.rate:g}",
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
    }
    template = files("babn.demo").joinpath("page.html").read_text(encoding="utf-8")
    body = Template(template).substitute({name: join(value) for name, value in values.items()})
    return document(f"{TITLE} (babn demo)", Markup(body), AUTHOR)


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


def _definitions(entries: Iterable[tuple[str, str]]) -> Markup:
    """The entries of a definition list."""
    return join(*(join(element("dt", term), element("dd", text)) for term, text in entries))
