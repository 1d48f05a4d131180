"""`babn sweep` refuses what cannot work before anything is begun."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from babn.cli._app import app

GRID = '[every]\nmodel = "small"\ndata = "builtin"\n[tasks.mrpc]\n[rules.softmax]\n'


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--engine", "cloud"], "--engine 'cloud' is not known. Choose local, ray or slurm."),
        (["--engine", "ray"], "--engine ray needs Ray: pip install 'babn[ray]'"),
        (["--engine", "slurm"], "--engine slurm needs submitit: pip install 'babn[slurm]'"),
        (["--engine", "ray", "--slurm", "time=3"], "--slurm time has no use with --engine ray"),
        (["--slurm", "partition"], "--slurm partition is not possible. Give NAME=VALUE."),
        (["--jobs", "0"], "--jobs 0 is not possible"),
        (["--cpus", "0"], "cpus=0 is not possible"),
        (["--gpus", "2"], "gpus=2.0 is not possible: a run of a grid uses one GPU"),
        (["--retries", "-1"], "retries=-1 is not possible"),
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
