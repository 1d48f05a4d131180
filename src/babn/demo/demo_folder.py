"""The folder that the demo writes: a report, a page of attention, and all numbers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import babn
from babn.demo.choices import BINS
from babn.demo.outcome import Outcome, evaluations
from babn.evaluation.html_pages import check_target
from babn.evaluation.html_report import AUTHOR, PAGE

VIEW, NUMBERS = "view.html", "results.json"
TITLE = "How sure is attention?"


def prepare(folder: Path, force: bool) -> None:
    """Makes the folder, unless it exists and holds what neither demo nor report has written.

    Called before anything is trained, so that the error comes early.
    """
    check_target(folder, PAGE, AUTHOR, force)
    folder.mkdir(parents=True, exist_ok=True)


def write(folder: Path, outcome: Outcome, versions: dict[str, str]) -> None:
    """Writes the report, the page of attention and the numbers."""
    found = evaluations(outcome.rows, outcome.texts)
    babn.report(found, folder, title=TITLE, bins=BINS, force=True)
    outcome.view.save(folder / VIEW)
    text = json.dumps(numbers(outcome, versions), indent=2, ensure_ascii=False)
    (folder / NUMBERS).write_text(text + "\n", encoding="utf-8")


def numbers(outcome: Outcome, versions: dict[str, str]) -> dict[str, Any]:
    """All results and settings as plain values."""
    return {
        "versions": versions,
        "settings": asdict(outcome.settings),
        "model": outcome.source.name,
        "recipe": asdict(outcome.recipe),
        "texts": {
            "clear": len(outcome.texts.clear),
            "out_of_scope": len(outcome.texts.outside),
            "ambiguous": len(outcome.texts.ambiguous),
        },
        "bins": BINS,
        "rows": [{"name": row.name, "level": row.level, **row.scores} for row in outcome.rows],
        "differences": {
            row: {name: {**asdict(each), "verdict": each.verdict} for name, each in found.items()}
            for row, found in outcome.differences.items()
        },
        "examples": [
            {"kind": each.kind, "text": each.text, "intent": each.intent, **each.numbers()}
            for each in outcome.examples
        ],
        "novelty": asdict(outcome.novelty),
    }
