"""Runs as jobs of Slurm, for which submitit's processes on this machine stand in."""

import os
import sys
from pathlib import Path

import pytest
from small_sweeps import (
    assert_same_runs,
    finish_sweep,
    interrupt_sweep,
    kill,
    start_sweep,
    worker_in_training,
)

from babn.errors import ConfigError, MissingExtraError
from babn_paper.experiments.engines import Resources, make_engine
from babn_paper.experiments.run_folder import RunFolder

LOCAL = ("--engine", "slurm", "--slurm", "cluster=local")


def test_without_submitit_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'babn\[slurm\]'"):
        make_engine("slurm", Resources(), tmp_path)


@pytest.mark.parametrize(
    ("options", "gpus", "part"),
    [
        ({}, None, "needs the commands srun and sbatch"),
        ({"cluster": "moon"}, None, "cluster='moon' is invalid"),
        ({"cluster": "local", "time": "soon"}, None, "time='soon' is invalid"),
        ({"cluster": "local", "partitoin": "gpu"}, None, "Unknown argument 'partitoin'"),
        ({"cluster": "local"}, 0.5, "gpus=0.5 is not supported with Slurm"),
    ],
)
def test_what_cannot_work_is_refused(
    options: dict[str, str],
    gpus: float | None,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=part):
        make_engine("slurm", Resources(gpus=gpus), tmp_path, options)


def test_parameters_reach_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that sbatch would be given has the requested resources."""
    for command in ("srun", "sbatch"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    requested = {"partition": "gpu", "time": "90"}
    engine = make_engine("slurm", Resources(cpus=3, gpus=1), tmp_path / "jobs", requested)
    text = engine.executor._executor._make_submission_file_text("command", "uid")  # type: ignore[attr-defined]
    for line in ("partition=gpu", "time=90", "cpus-per-task=3", "gpus-per-node=1"):
        assert f"#SBATCH --{line}\n" in text


@pytest.mark.slow
def test_a_killed_job_costs_nothing(tmp_path: Path, undisturbed: Path) -> None:
    sweep = start_sweep(tmp_path, *LOCAL)
    _, process = worker_in_training(tmp_path)
    kill(process)
    assert "restarted (1 of 2)" in finish_sweep(sweep)
    assert_same_runs(undisturbed, tmp_path)


@pytest.mark.slow
def test_ctrl_c_stops_all_jobs_with_a_checkpoint(tmp_path: Path) -> None:
    sweep = start_sweep(tmp_path, *LOCAL)
    run, _ = worker_in_training(tmp_path)
    assert interrupt_sweep(sweep) == 130
    assert RunFolder(run).state == "unfinished" and RunFolder(run).holder is None
    assert not list(tmp_path.rglob("stop-*"))
