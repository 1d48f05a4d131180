"""A report of all reproduced tables, in Markdown and as a self-contained HTML page."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path

from babn.evaluation.html_pages import Markup, document, element, join
from babn.evaluation.tables import Table
from babn.files import replace_text
from babn_paper.experiments.results_page import EXPLANATION

AUTHOR = "babn reproduce all"
"""Identifies pages that this command wrote and may overwrite."""

PAGE, MARKDOWN = "index.html", "RESULTS.md"

TITLE = "The paper's tables"

QUICK = (
    "These runs are a smoke test: tiny models, a few steps, the small data that comes with the "
    "package. They show that every table can be made, and nothing about which attention is better; "
    "the paper's numbers stand beside them for orientation only."
)


@dataclass(frozen=True)
class Section:
    """One table or figure of the report.

    Attributes:
        title: Its heading.
        command: The command that makes it alone.
        state: How much of it is done, or why it is missing.
        table: The table, if it has one.
        notes: Paragraphs below the table.
        pictures: PNG files below the table.
    """

    title: str
    command: str
    state: str
    table: Table | None = None
    notes: Sequence[str] = ()
    pictures: Sequence[Path] = ()

    def failed(self, reason: str) -> "Section":
        """The section with an error in its state."""
        return replace(self, state=f"{self.state}; failed: {reason}")


def write_report(sections: Sequence[Section], folder: Path, command: str, quick: bool) -> Path:
    """Writes both pages to a folder and returns the path of the HTML page."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / MARKDOWN, _markdown(sections, folder, command, quick))
    replace_text(folder / PAGE, _html(sections, command, quick))
    return folder / PAGE


def _markdown(sections: Sequence[Section], folder: Path, command: str, quick: bool) -> str:
    parts = [f"# {TITLE}", f"```console\n{command}\n```", *([QUICK] if quick else [])]
    states = Table(["table", "state"], [[each.title, each.state] for each in sections])
    parts += [EXPLANATION.strip(), states.markdown().strip()]
    for each in sections:
        parts += [f"## {each.title}", f"```console\n{each.command}\n```", f"State: {each.state}"]
        if each.table is not None:
            parts += [*filter(None, [each.table.caption]), each.table.markdown().strip()]
        parts += [*each.notes, *(f"![]({relpath(file, folder)})" for file in each.pictures)]
    return "\n\n".join(parts) + "\n"


def _html(sections: Sequence[Section], command: str, quick: bool) -> str:
    head = [element("h1", TITLE), *([element("p", QUICK)] if quick else [])]
    explanation = EXPLANATION.replace("*", "")
    body = join(
        *head,
        element("p", element("code", command)),
        element("dl", *(join(element("dt", s.title), element("dd", s.state)) for s in sections)),
        element("p", explanation, class_="muted"),
        *(_section(each) for each in sections),
    )
    return document(f"{TITLE} (babn)", body, AUTHOR)


def _section(section: Section) -> Markup:
    parts = [
        element("h2", section.title),
        element("p", element("code", section.command), f" ({section.state})"),
    ]
    if section.table is not None:
        parts.append(element("div", Markup(section.table.html()), class_="scroll dense"))
    parts += [element("p", note, class_="muted") for note in section.notes]
    return join(*parts, *map(_picture, section.pictures))


def _picture(file: Path) -> Markup:
    data = b64encode(file.read_bytes()).decode()
    image = f'<img alt="{file.stem}" style="max-width: 100%" src="data:image/png;base64,{data}">'
    return element("figure", Markup(image), element("figcaption", file.stem))
