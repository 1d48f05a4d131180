"""Tables in the terminal, in the style of all commands."""

from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table


def empty_table(title: str | None = None) -> Table:
    """A table without columns."""
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )


def plain_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    title: str | None = None,
    tight: bool = False,
) -> Table:
    """A table whose first columns hold text and whose other columns hold numbers.

    In a narrow terminal headings break between words, but numbers do not break.

    Args:
        columns: The headings.
        rows: Cells of each row.
        texts: Number of text columns.
        title: Title above the table.
        tight: Whether columns are as narrow as possible, even if the terminal is wide enough.
    """
    made = empty_table(title)
    for i, name in enumerate(columns):
        width = max(map(len, (*name.split(), *(row[i] for row in rows))))
        side: Literal["left", "right"] = "left" if i < texts else "right"
        made.add_column(
            name,
            justify=side,
            no_wrap=i < texts,
            vertical="bottom",
            min_width=width,
            width=width if tight else None,
        )
    for row in rows:
        made.add_row(*row)
    return made
