"""Writes RESULTS.md from the results that are committed: python benchmarks/make_results.py."""

from pathlib import Path

from babn.experiments.records import load_records
from babn.experiments.results_page import page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

HEAD = """# Results

Everything here was measured with the commands shown; `python benchmarks/make_results.py` wrote this
page from the numbers in `benchmarks/results`. Where BABN is behind, the tables say so.
"""

SECTIONS = {
    "minilm-glue": "Language understanding with MiniLM",
    "minilm-search": "The search for settings, on development data",
}
"""Files of results that `babn sweep` wrote, and their headings."""


def main() -> None:
    """One section for each file."""
    parts = [HEAD]
    for name, title in SECTIONS.items():
        file = RESULTS / f"{name}.json"
        if file.exists():
            records, command = load_records(file)
            parts.append(page(records, title, command))
    (ROOT / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
