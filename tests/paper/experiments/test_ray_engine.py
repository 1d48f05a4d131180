"""Runs in processes that Ray places."""

import sys
from pathlib import Path

import pytest
from small_sweeps import (
    assert_same_runs,
    finish_sweep,
    interrupt_sweep,
    kill,
    parent_of,
    start_sweep,
    worker_in_training,
)

from babn.errors import ConfigError, MissingExtraError
from babn_paper.experiments.cluster_engines import _share
from babn_paper.experiments.engines import Resources, make_engine
from babn_paper.experiments.run_folder import RunFolder


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'babn\[ray\]'"):
        make_engine("ray", Resources(), tmp_path)


@pytest.mark.parametrize(
    ("name", "there", "jobs", "share"),
    [
        ("cpus", 8, 3, 2),
        ("cpus", 2, 4, 1),
        ("gpus", 1, 4, 0.25),
        ("gpus", 8, 4, 1),
        ("gpus", 0, 2, 0),
    ],
)
def test_a_run_gets_its_share(name: str, there: float, jobs: int, share: float) -> None:
    assert _share(name, None, there, jobs) == share


def test_more_than_there_is_is_refused() -> None:
    assert _share("gpus", 0.5, 1, 8) == 0.5
    with pytest.raises(ConfigError, match="cpus=64 is invalid: the Ray cluster has 8"):
        _share("cpus", 64, 8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["worker", "actor"])
def test_a_killed_process_costs_nothing(whom: str, tmp_path: Path, undisturbed: Path) -> None:
    pytest.importorskip("ray")
    sweep = start_sweep(tmp_path, "--engine", "ray")
    _, worker = worker_in_training(tmp_path)
    kill(worker if whom == "worker" else parent_of(worker))
    output = finish_sweep(sweep)
    end = "ended with -9" if whom == "worker" else "Ray actor is lost"
    assert end in output and "restarted (1 of 2)" in output
    assert_same_runs(undisturbed, tmp_path)


@pytest.mark.slow
def test_ctrl_c_stops_all_runs_with_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    sweep = start_sweep(tmp_path, "--engine", "ray")
    run, _ = worker_in_training(tmp_path)
    assert interrupt_sweep(sweep) == 130
    assert RunFolder(run).state == "unfinished" and RunFolder(run).holder is None
