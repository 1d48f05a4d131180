"""Tables as Markdown, LaTeX, CSV and HTML."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from babn.evaluation.html_pages import Markup, element

LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "<": "$<$", ">": "$>$", "–": "--"}
)


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column names the rows.

    Attributes:
        columns: The column headings.
        rows: Cells of each row, as many as there are columns; a cell may have several lines.
        caption: Description of the table.
        best: Positions (row, column) of the best cell of each column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    best: frozenset[tuple[int, int]] = frozenset()

    def without(self, name: str) -> "Table":
        """The table without one of its columns."""
        place = list(self.columns).index(name)
        rows = [[*row[:place], *row[place + 1 :]] for row in self.rows]
        best = {(row, column - (column > place)) for row, column in self.best if column != place}
        columns = [*self.columns[:place], *self.columns[place + 1 :]]
        return Table(columns, rows, self.caption, frozenset(best))

    def markdown(self) -> str:
        """A Markdown table; the best cells are bold."""
        cells = self._marked("**{}**", lambda text: _one_line(text).replace("|", "\\|"))
        columns = zip(self.columns, *cells, strict=True)
        widths = [max(3, *map(len, column)) for column in columns]
        dashes = ["-" * width for width in widths]
        dashes = [dashes[0], *(f"{each[:-1]}:" for each in dashes[1:])]
        lines = [self.columns, dashes, *cells]
        padded = [
            [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
        ]
        return "\n".join(f"| {' | '.join(line)} |" for line in padded) + "\n"

    def latex(self) -> str:
        """A LaTeX `tabular` with the rules of booktabs."""
        cells = self._marked(r"\textbf{{{}}}", lambda text: _one_line(text).translate(LATEX))
        head = [column.translate(LATEX) for column in self.columns]
        body = "\n".join(f"{' & '.join(row)} \\\\" for row in cells)
        places = "l" + "r" * (len(self.columns) - 1)
        caption = f"% {self.caption}\n" if self.caption else ""
        return (
            f"{caption}\\begin{{tabular}}{{{places}}}\n\\toprule\n{' & '.join(head)} \\\\\n"
            f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
        )

    def csv(self) -> str:
        """Comma-separated values."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns, *([_one_line(cell) for cell in row] for row in self.rows)])
        return text.getvalue()

    def html(self) -> Markup:
        """An HTML table; the best cells are strong."""
        cells = self._marked("<strong>{}</strong>", lambda text: escape(text).replace("\n", "<br>"))
        head = element("tr", *(element("th", name, scope="col") for name in self.columns))
        rows = [
            [element("th", Markup(name), scope="row"), *(element("td", Markup(x)) for x in row)]
            for name, *row in cells
        ]
        body = (element("tr", *row) for row in rows)
        caption = element("caption", self.caption) if self.caption else ""
        return element("table", caption, element("thead", head), element("tbody", *body))

    def _marked(self, mark: str, escape: Callable[[str], str]) -> list[list[str]]:
        return [
            [
                mark.format(escape(cell)) if (i, j) in self.best else escape(cell)
                for j, cell in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
