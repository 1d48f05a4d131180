"""`babn sweep`: several grids at once, and what cannot work is refused before anything is begun."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from babn.cli._app import app
from babn_paper.experiments.records import load_records

pytestmark = pytest.mark.thorough

GRID = '[every]\nmodel = "small"\ndata = "builtin"\n[tasks.mrpc]\n[methods.softmax]\n'


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--engine", "cloud"], "--engine 'cloud' is not known. Choose local, ray or slurm."),
        (["--engine", "ray"], "--engine ray needs Ray: pip install 'babn[ray]'"),
        (["--engine", "slurm"], "--engine slurm needs submitit: pip install 'babn[slurm]'"),
        (["--engine", "ray", "--slurm", "time=3"], "--slurm time does not apply to --engine ray"),
        (["--slurm", "partition"], "--slurm partition is invalid. Write NAME=VALUE."),
        (["--jobs", "0"], "jobs=0 is invalid"),
        (["--cpus", "0"], "cpus=0 is invalid"),
        (["--gpus", "2"], "gpus=2.0 is invalid: a run of a grid uses one GPU"),
        (["--retries", "-1"], "retries=-1 is invalid"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(GRID)
    found = CliRunner().invoke(app(), ["sweep", "small.toml", *options])
    assert found.exit_code == 2
    assert part in " ".join(found.output.split())
    assert not Path("runs").exists()


def test_several_grids_run_together_and_have_tables_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text(GRID)
    Path("two.toml").write_text(GRID.replace("softmax", "bam"))
    words = ["sweep", "one.toml", "two.toml", "--set", "steps=1", "--set", "samples=1"]
    monkeypatch.setattr(sys, "argv", ["babn", *words])
    done = CliRunner().invoke(app(), words)
    assert done.exit_code == 0, done.output
    for name, method, other in (("one", "softmax", "two"), ("two", "bam", "one")):
        records, command = load_records(Path("runs") / name / "results.json")
        assert [record.experiment["method"] for record in records] == [method]
        assert f"{name}.toml" in command and f"{other}.toml" not in command


def test_grids_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    for path in ("same.toml", "other/same.toml"):
        Path(path).write_text(GRID)
    found = CliRunner().invoke(app(), ["sweep", "same.toml", "other/same.toml"])
    assert found.exit_code == 2 and "have the same name" in " ".join(found.output.split())
    assert not Path("runs").exists()
