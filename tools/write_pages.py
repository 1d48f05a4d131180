"""Writes every table that the documentation quotes from committed results.

    python tools/write_pages.py

Prose is written by hand in the pages; the tables stand between `<!-- NAME -->` and
`<!-- /NAME -->` and are replaced. `benchmarks/cost_pages.py` makes the tables of the library,
`paper/paper_pages.py` those of the paper's experiments. `benchmarks/choosing_page.py` fills
a template for a whole page and draws its figures, if there are results for it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "paper", "tools")]

import choosing_page  # noqa: E402
import cost_pages  # noqa: E402
import paper_pages  # noqa: E402


def blocks() -> Iterator[tuple[str, str, str]]:
    """The page, the name and the text of every table."""
    yield from cost_pages.blocks()
    yield from paper_pages.blocks()


def block(name: str, text: str) -> str:
    """A table between its marks."""
    return f"<!-- {name} -->\n{text.strip()}\n<!-- /{name} -->"


def put(file: Path, name: str, text: str) -> None:
    """Replaces a table in a page, which must have its marks."""
    whole, count = re.subn(
        f"<!-- {name} -->.*?<!-- /{name} -->",
        lambda _: block(name, text),
        file.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{file} has {count} places for {name}; it needs one.")
    file.write_text(whole, encoding="utf-8")


def add_to_navigation(page: str, title: str, after: str) -> None:
    """Adds a page to the site's navigation, if it is not there."""
    file = ROOT / "mkdocs.yml"
    lines = file.read_text(encoding="utf-8").splitlines()
    if not any(line.endswith(f": {page}") for line in lines):
        place = next(i for i, line in enumerate(lines) if line.endswith(f": {after}"))
        indent = lines[place].partition("-")[0]
        lines.insert(place + 1, f"{indent}- {title}: {page}")
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the tables."""
    for page, name, text in blocks():
        put(ROOT / page, name, text)
    for page, text in choosing_page.pages():
        (ROOT / page).write_text(text, encoding="utf-8")
        choosing_page.draw(choosing_page.files(), ROOT / "docs" / "figures")
        add_to_navigation("choosing.md", "Choose a method", "uncertainty.md")


if __name__ == "__main__":
    main()
