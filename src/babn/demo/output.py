"""The folder that the demo writes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from babn.demo.choices import BINS
from babn.demo.outcome import Outcome
from babn.demo.page import AUTHOR, page
from babn.evaluation.page import check_target

PAGE, NUMBERS = "index.html", "results.json"


def prepare(folder: Path, force: bool) -> None:
    """Makes the folder, unless it exists and holds what the demo did not write.

    Called before training, so that nobody waits for results that have nowhere to go.
    """
    check_target(folder, PAGE, AUTHOR, force)
    folder.mkdir(parents=True, exist_ok=True)


def write(folder: Path, outcome: Outcome, versions: dict[str, str]) -> None:
    """Writes the page and the numbers."""
    (folder / PAGE).write_text(page(outcome, versions), encoding="utf-8")
    text = json.dumps(numbers(outcome, versions), indent=2, ensure_ascii=False)
    (folder / NUMBERS).write_text(text + "\n", encoding="utf-8")


def numbers(outcome: Outcome, versions: dict[str, str]) -> dict[str, Any]:
    """All results and settings as plain values."""
    return {
        "versions": versions,
        "settings": asdict(outcome.settings),
        "model": outcome.source.name,
        "recipe": asdict(outcome.recipe),
        "rules": {each.name: each.config.to_dict() for each in outcome.attempts},
        "texts": {
            "clear": len(outcome.texts.clear),
            "out_of_scope": len(outcome.texts.outside),
            "ambiguous": len(outcome.texts.ambiguous),
        },
        "bins": BINS,
        "rows": [asdict(row) for row in outcome.rows],
        "differences": {
            name: {**asdict(each), "verdict": each.verdict}
            for name, each in outcome.differences.items()
        },
        "portraits": [asdict(portrait) for portrait in outcome.portraits],
    }
