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
    "minilm-glue": "Language understanding with MiniLM: small tasks",
    "minilm-large": "Language understanding with MiniLM: larger tasks",
    "minilm-search": "The search for settings, on development data",
}
"""Files of results that `babn sweep` wrote, and their headings."""

HOW = """
MiniLM's weights were read from a copy in half precision. Runs went side by side under a limit of
time, the small and the larger tasks together (seven and eight at a time): what is missing was cut
off by it. Paths of folders were taken out of the commands and records afterwards.
"""
DROPOUT = """
The search tried softmax with and without dropout and chose none; BAM and BABN were searched and run
with the model's own rate of 0.1 alone. Part of their distance to softmax, in both directions, is
dropout's. All rules were best at the smallest learning rate, and at rho = 12 the noise of an
attention weight begins at a tenth of it, so that samples hardly differ from the mean.
`minilm-search-2` is made to repair this; these figures stand until it has been run.
"""
REMARKS = {
    "minilm-glue": HOW + DROPOUT,
    "minilm-large": HOW + DROPOUT,
    "minilm-search": HOW,
}
"""What has to be known to read a section."""


def main() -> None:
    """One section for each file."""
    parts = [HEAD]
    for name, title in SECTIONS.items():
        file = RESULTS / f"{name}.json"
        if file.exists():
            records, command = load_records(file)
            parts.append(page(records, title, command) + REMARKS.get(name, ""))
    (ROOT / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
