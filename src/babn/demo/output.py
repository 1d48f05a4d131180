"""The folder that the demo writes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from babn.demo import metrics
from babn.demo.outcome import Outcome
from babn.demo.page import MARKER, page
from babn.errors import BabnError

PAGE, NUMBERS = "index.html", "results.json"


class TargetError(BabnError, FileExistsError):
    """The folder to write holds something else."""


def prepare(folder: Path, force: bool) -> None:
    """Makes the folder, unless it exists and holds what the demo did not write.

    Called before training, so that nobody waits for results that have nowhere to go.
    """
    if folder.exists() and not folder.is_dir():
        raise TargetError(f"--out {folder} is a file. Give the name of a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not force and not written_by_demo(folder):
        raise TargetError(
            f"--out {folder} holds files that the demo did not write. Give another folder, or "
            "--force to write into this one."
        )
    folder.mkdir(parents=True, exist_ok=True)


def written_by_demo(folder: Path) -> bool:
    """Whether the folder's page is the demo's."""
    written = folder / PAGE
    return written.is_file() and MARKER in written.read_text(encoding="utf-8", errors="replace")


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
        "bins": metrics.BINS,
        "rows": [asdict(row) for row in outcome.rows],
        "differences": [{**asdict(d), "verdict": d.verdict} for d in outcome.differences],
        "portraits": [asdict(portrait) for portrait in outcome.portraits],
    }
