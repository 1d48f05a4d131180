"""Committed results in a compact form, and the one reader of it.

    python paper/result_files.py runs/minilm-glue/results.json --out paper/results/minilm-glue.json

Shortens the `results.json` of `babn sweep`, `babn reproduce` or `babn attack`. Runs of a grid share
most of their configuration, so the file holds columns: for each field of a run a list with the
values of all runs, or with one value if all runs agree. Numbers keep eight significant digits, and
the command line of each run is left out.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from babn_paper.experiments.experiment import current_names
from babn_paper.experiments.records import Record
from babn_paper.experiments.run_folder import with_nan

FORMAT = "columns"
ABSENT: list[Any] = []
"""Stands in a column for a field that a run does not have."""
PARTIAL = "?"
"""Ends the name of a group of fields that some runs do not have at all."""
DIGITS = 8

Columns = dict[str, Any]
"""Nested like a run; the leaves are lists."""


def load_records(path: Path) -> tuple[list[Record], str]:
    """Records of a compact file and the command that made them."""
    runs, command = load_runs(path)
    records = [Record(**run) for run in runs]
    return [
        Record(each.label, each.experiment, with_nan(each.results), each.environment)
        for each in records
    ], command


def load_runs(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Runs or attacks of a file, compact or as babn writes it, and their command."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT:
        runs = found.get("runs") or found["attacks"]
    else:
        runs = [_row(found["columns"], i) for i in range(found["count"])]
    return [current_names(run) for run in runs], found["command"]


def save_runs(runs: Sequence[dict[str, Any]], command: str, path: Path) -> None:
    """Writes a compact file."""
    runs = [shortened(run) for run in runs]
    columns = _columns(runs)
    assert [_row(columns, i) for i in range(len(runs))] == runs, "the compact form loses a field"
    head = f'{{"format": "{FORMAT}", "command": {json.dumps(command)}, "count": {len(runs)},\n'
    path.write_text(f'{head}"columns": {_text(columns)}}}\n', encoding="utf-8")


def shortened(run: dict[str, Any]) -> dict[str, Any]:
    """A run with rounded numbers and a shorter description of its environment."""
    environment = {name: value for name, value in run["environment"].items() if name != "command"}
    if "started" in environment:
        environment["started"] = environment["started"][:10]
    if environment.get("git"):
        environment["git"] = {**environment["git"], "commit": environment["git"]["commit"][:10]}
    measured = {name: rounded(run[name]) for name in ("results", "summary") if name in run}
    return {**run, "environment": environment, **measured}


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """A value with all its numbers rounded to significant digits."""
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _columns(runs: Sequence[dict[str, Any]]) -> Columns:
    found: Columns = {}
    for name in _names(runs):
        values = [run.get(name, ABSENT) for run in runs]
        groups = [value for value in values if isinstance(value, dict)]
        if len(groups) == len(values):
            found[name] = _columns(groups)
        elif groups and all(groups) and all(v == ABSENT or v in groups for v in values):
            found[name + PARTIAL] = _columns([value or {} for value in values])
        else:
            found[name] = values[:1] if all(value == values[0] for value in values) else values
    return found


def _names(runs: Sequence[dict[str, Any]]) -> list[str]:
    """All names of fields, in an order that agrees with that of each run."""
    names: list[str] = []
    for run in sorted(runs, key=len, reverse=True):
        place = 0
        for name in run:
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return names


def _row(columns: Columns, index: int) -> dict[str, Any]:
    found = {}
    for name, column in columns.items():
        if isinstance(column, dict):
            value = _row(column, index)
            if value or not name.endswith(PARTIAL):
                found[name.removesuffix(PARTIAL)] = value
        elif (value := column[0] if len(column) == 1 else column[index]) != ABSENT:
            found[name] = value
    return found


def _text(columns: Columns) -> str:
    """JSON with a line for each column."""
    lines = [
        f"{json.dumps(name)}: "
        + (_text(column) if isinstance(column, dict) else json.dumps(column, separators=(",", ":")))
        for name, column in columns.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"


def main() -> None:
    """Shortens a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    runs, command = load_runs(args.results)
    save_runs(runs, command, args.out)


if __name__ == "__main__":
    main()
