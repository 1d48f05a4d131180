"""Tables of results on a terminal, which may be too narrow for them."""

from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as TerminalTable

from babn.evaluation.tables import Table
from babn_paper.experiments.result_tables import NONE

HIDDEN = (
    *("NLL", "measure", "ECE + TS", "AURC", "OOD", "chrF ~", "sacreBLEU", "sentences"),
    "error AUROC",
)
"""Beginnings of the names of columns that are left to files."""

TEXTS = ("task", "model", "attention", "asked")
LONG = "attention"
"""Columns of text, and the one that may take several lines."""

LEAST = 16
"""The narrowest that it may be."""

PARTED, IN_LINES = " / ", " /\n"
"""Between numbers of a cell, and the same in several lines."""

BETWEEN = 2
"""Spaces between columns."""


def fitted(table: Table, width: int) -> TerminalTable:
    """The columns that fit; files have all of them.

    Long names take several lines before numbers do, and numbers before the last of them go.

    Args:
        table: The whole table.
        width: Of the terminal.
    """
    rows = [[cell.replace(" ± ", "±") for cell in row] for row in table.rows]
    cells = {name: [row[i] for row in rows] for i, name in enumerate(table.columns)}
    kept = [name for name in table.columns if _told(name, cells[name])]
    widths = {name: _widths(name, cells[name]) for name in kept}
    while sum(least + BETWEEN for least, _ in widths.values()) > width and len(
        numbers := _numbers(kept)
    ):
        last = numbers[-2] if numbers[-1] == "seeds" and len(numbers) > 1 else numbers[-1]
        kept.remove(last)
        del widths[last]
    left = width - sum(least + BETWEEN for least, _ in widths.values())
    made = TerminalTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    order = sorted(kept, key=lambda name: name == LONG)  # others come to their whole width first
    given = {}
    for name in order:
        least, whole = widths[name]
        given[name] = min(whole, least + left)
        left -= given[name] - least
    for name in kept:
        side: Literal["left", "right"] = "left" if name in TEXTS else "right"
        made.add_column(name, justify=side, vertical="top", width=given[name], overflow="fold")
        if given[name] < widths[name][1] and name not in TEXTS:
            cells[name] = [cell.replace(PARTED, IN_LINES) for cell in cells[name]]
    for i in range(len(rows)):
        made.add_row(*(cells[name][i] for name in kept))
    return made


def _told(name: str, cells: Sequence[str]) -> bool:
    """Whether a column is shown: no table without a number needs a column for the paper's."""
    return not name.startswith(HIDDEN) and (name in TEXTS or any(cell != NONE for cell in cells))


def _numbers(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in TEXTS]


def _widths(name: str, cells: Sequence[str]) -> tuple[int, int]:
    """The narrowest and the widest that a column can use."""
    heading = max(map(len, name.split()))
    whole = max([heading, *map(len, cells)])
    if name in TEXTS:
        return min(whole, LEAST) if name == LONG else whole, whole
    lines = [line for cell in cells for line in cell.replace(PARTED, IN_LINES).splitlines()]
    return max([heading, *map(len, lines)]), whole
