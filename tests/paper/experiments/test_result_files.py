"""Compact files of results, as `paper/result_files.py` writes and reads them."""

import json
import math
from pathlib import Path
from typing import Any

from result_files import load_records, load_runs, save_runs, shortened

COMMON = {"task": "mrpc", "settings": {}, "sizes": {}}


def run(seed: int, measures: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "label": f"mrpc-{seed}",
        "experiment": {**COMMON, "seed": seed, **fields},
        "results": {"measures": measures} if measures else {},
        "environment": {"started": "2026-01-01T10:00:00", "command": "babn train", "versions": {}},
    }


RUNS = [
    run(0, {"test": {"mean": {"NLL": 1 / 3}, "dropout": {"NLL": None}}}),
    run(1, {"test": {"mean": {"NLL": 0.5}, "sampled": {"NLL": 0.25}, "dropout": {"NLL": 1.0}}}),
    run(2, {}, settings={"k": 1.5, "layers": [0, 2]}, options={"beam": 2}),
    run(3, {"test": {"sampled": {"NLL": 0.1}}}, options={}),
]


def test_runs_are_read_as_they_were_but_for_what_is_shortened(tmp_path: Path) -> None:
    save_runs(RUNS, "babn sweep grid.toml", tmp_path / "runs.json")
    found, command = load_runs(tmp_path / "runs.json")
    assert command == "babn sweep grid.toml"
    assert found == [shortened(each) for each in RUNS]
    assert list(found[1]["results"]["measures"]["test"]) == ["mean", "sampled", "dropout"]
    assert found[0]["results"]["measures"]["test"]["mean"]["NLL"] == 0.33333333
    assert found[0]["environment"] == {"started": "2026-01-01", "versions": {}}


def test_values_that_all_runs_share_are_stored_once(tmp_path: Path) -> None:
    save_runs(RUNS, "", tmp_path / "runs.json")
    columns = json.loads((tmp_path / "runs.json").read_text())["columns"]
    assert columns["experiment"]["task"] == ["mrpc"]
    assert columns["experiment"]["seed"] == [0, 1, 2, 3]


def test_records_come_from_compact_files_and_from_those_of_babn(tmp_path: Path) -> None:
    save_runs(RUNS, "", tmp_path / "compact.json")
    (tmp_path / "full.json").write_text(json.dumps({"command": "", "runs": RUNS}))
    for name in ("compact", "full"):
        records, _ = load_records(tmp_path / f"{name}.json")
        assert [record.experiment["seed"] for record in records] == [0, 1, 2, 3]
        assert math.isnan(records[0].of("test", "dropout")["NLL"])
