"""The folder that the demo writes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from babn.demo.choices import BINS
from babn.demo.demo_page import AUTHOR, page
from babn.demo.outcome import Example, Outcome
from babn.evaluation.html_pages import check_target

PAGE, NUMBERS = "index.html", "results.json"


def prepare(folder: Path, force: bool) -> None:
    """Makes the folder, unless it exists and holds what the demo did not write.

    Called before training, so that a folder that cannot be used is reported at once.
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
        "examples": [_example(each) for each in outcome.examples],
        "novelty": asdict(outcome.novelty),
    }


def _example(example: Example) -> dict[str, Any]:
    return {
        "kind": example.kind,
        "text": example.text,
        "intended": example.intended,
        "intent": example.intent,
        **example.numbers(),
        "tokens": example.tokens,
        "weights": example.attention.mean[0, 0].tolist(),
        "relative_std": example.attention.relative_std[0, 0].tolist(),
    }
