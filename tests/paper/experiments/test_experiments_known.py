"""Results that are known already, as `paper/on_one_gpu.py` takes them up."""

import runpy
from dataclasses import asdict
from pathlib import Path

import pytest

from babn.progress import Progress
from babn_paper.experiments.grids import read_grid
from babn_paper.experiments.jobs import run_all
from babn_paper.experiments.records import Record, collect, save_records

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[3] / "paper/on_one_gpu.py"

GRID = """
seeds = [0, 1]
[every]
model = "small"
data = "builtin"
steps = 2
[tasks.mrpc]
[methods.softmax]
[methods.belief]
"""


FINISHED = {"scores": [], "parameters": 0, "steps": 1, "seconds_per_step": 0.1}
"""What the results of every finished run hold."""


def test_known_results_are_not_run_again_and_stand_in_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, known = tmp_path / "small.toml", tmp_path / "known.json"
    file.write_text(GRID)
    jobs = read_grid(file).jobs({})
    before = [
        Record(
            label=job.folder.parent.name,
            experiment={**job.experiment.to_dict(), "data": "DIR"},
            results={
                **FINISHED,
                "measures": {"dev": {"mean": {"accuracy": 0.5 + job.experiment.seed / 10}}},
            },
            environment={"command": f"babn train {job.folder}"},
        )
        for job in jobs
    ]
    missing = Record(before[0].label, {**before[0].experiment, "seed": 2}, {}, {})
    ensemble = Record("mrpc-ensemble", {**before[0].experiment, "method": "ensemble"}, {"a": 1}, {})
    save_records([*before, missing, ensemble], known, "babn sweep small.toml")

    runpy.run_path(str(SCRIPT))["restore"](file, known, "builtin")

    assert run_all(jobs, 1, Progress()) == {}
    found = [{**asdict(each), "experiment": each.experiment | {"data": "DIR"}} for each in
             collect(jobs)]  # fmt: skip
    assert found == [asdict(each) for each in before]
    assert sorted(each.name for each in Path("runs/small").iterdir()) == [
        "mrpc-belief",
        "mrpc-softmax",
    ]
    assert not Path("runs/small/mrpc-softmax/seed-2").exists()


def test_known_ensembles_stand_behind_their_members(tmp_path: Path) -> None:
    fields = {"method": "softmax", "task": "mrpc", "seed": 0}
    ensembles = [
        Record(f"{task}-ensemble", {**fields, "method": "ensemble"}, {"members": 5}, {})
        for task in ("mrpc", "rte")
    ]
    known = tmp_path / "known.json"
    save_records(ensembles, known, "")
    labels = ["mrpc-softmax", "mrpc-softmax", "mrpc-bam", "rte-softmax", "rte-ensemble"]
    found = {"format": 1, "runs": [{"label": label, "results": "new"} for label in labels]}
    joined = runpy.run_path(str(SCRIPT))["with_ensembles"](found, known)
    labels.insert(2, "mrpc-ensemble")
    assert [each["label"] for each in joined["runs"]] == labels
    assert joined["runs"][2]["results"] == {"members": 5}
    assert joined["runs"][-1]["results"] == "new"
