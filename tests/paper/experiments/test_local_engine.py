"""Runs in processes of this machine."""

from pathlib import Path

import pytest
import torch
from small_experiments import tiny
from small_sweeps import (
    assert_same_runs,
    finish_sweep,
    interrupt_sweep,
    kill,
    parent_of,
    start_sweep,
    until,
    worker_in_training,
)

from babn.errors import BabnError, ConfigError
from babn_paper.experiments.engines import (
    Job,
    LocalEngine,
    LocalSlot,
    Resources,
    WorkerDiedError,
    make_engine,
)
from babn_paper.experiments.run_folder import RunFolder

pytestmark = pytest.mark.thorough


def test_the_last_words_of_a_process_that_dies_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread folder\necho no memory >&2\necho >&2\nexit 7\n")
    python.chmod(0o755)
    monkeypatch.setattr("babn_paper.experiments.engines.sys.executable", str(python))
    slot = LocalSlot(1)
    with pytest.raises(WorkerDiedError, match=r"ended with 7 \(no memory\)$"):
        slot.run(Job(tiny(), tmp_path))
    slot.close()


def test_slots_take_turns_over_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    shown = []
    for gpus in (None, 0):
        engine = LocalEngine(Resources(jobs=3, cpus=4, gpus=gpus))
        slots = [engine.slot(number) for number in range(3)]
        shown.append([slot.variables["CUDA_VISIBLE_DEVICES"] for slot in slots])
        assert {slot.variables["OMP_NUM_THREADS"] for slot in slots} == {"4"}
        for slot in slots:
            slot.close()
    assert shown == [["3", "5", "3"], ["", "", ""]]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"jobs": 0}, "jobs=0"),
        ({"cpus": 0}, "cpus=0"),
        ({"gpus": -1.0}, "gpus=-1.0"),
        ({"gpus": 2.0}, r"gpus=2.0 is invalid: a run of a grid uses one GPU.*torchrun"),
    ],
)
def test_resources_that_cannot_be_are_refused(fields: dict[str, float], part: str) -> None:
    with pytest.raises(BabnError, match=part):
        Resources(**fields)  # type: ignore[arg-type]


def test_unknown_engines_and_options_without_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--engine 'cloud' is not known"):
        make_engine("cloud", Resources(), tmp_path)
    with pytest.raises(ConfigError, match="--slurm partition does not apply to --engine local"):
        make_engine("local", Resources(), tmp_path, {"partition": "gpu"})


@pytest.mark.slow
def test_a_slot_runs_and_replies(tmp_path: Path) -> None:
    slot = LocalSlot(1)
    assert slot.run(Job(tiny(steps=2), tmp_path / "good")) == ""
    assert "/nowhere" in slot.run(Job(tiny(data="/nowhere"), tmp_path / "bad"))
    slot.close()
    assert RunFolder(tmp_path / "good").state == "done"


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(tmp_path: Path, undisturbed: Path) -> None:
    sweep = start_sweep(tmp_path)
    _, process = worker_in_training(tmp_path)
    kill(process)
    output = finish_sweep(sweep)
    assert "ended with -9" in output and "restarted (1 of 2)" in output
    assert_same_runs(undisturbed, tmp_path)


@pytest.mark.slow
def test_workers_of_a_killed_sweep_write_a_checkpoint_and_stop(
    tmp_path: Path, undisturbed: Path
) -> None:
    sweep = start_sweep(tmp_path)
    run, process = worker_in_training(tmp_path)
    assert parent_of(process) == sweep.pid
    kill(sweep.pid)
    sweep.communicate()
    until(lambda: RunFolder(run).holder is None, 30)
    assert RunFolder(run).state == "unfinished"
    finish_sweep(start_sweep(tmp_path))
    assert_same_runs(undisturbed, tmp_path)


@pytest.mark.slow
def test_two_sweeps_of_one_grid_share_its_runs(tmp_path: Path, undisturbed: Path) -> None:
    first, second = start_sweep(tmp_path), start_sweep(tmp_path)
    for output in (finish_sweep(first), finish_sweep(second)):
        assert "failed" not in output and "restarted" not in output
    assert_same_runs(undisturbed, tmp_path)
    for log in tmp_path.glob("runs/*/*/*/tensorboard"):
        assert len(list(log.iterdir())) == 1  # begun once


@pytest.mark.slow
def test_ctrl_c_stops_a_sweep_which_the_same_command_finishes(
    tmp_path: Path, undisturbed: Path
) -> None:
    sweep = start_sweep(tmp_path)
    worker_in_training(tmp_path)
    assert interrupt_sweep(sweep) == 130
    folders = [RunFolder(path.parent) for path in tmp_path.glob("runs/*/*/*/experiment.toml")]
    # A run that had not begun has left nothing.
    assert folders and all(folder.state == "unfinished" for folder in folders)
    assert all(folder.holder is None for folder in folders)
    finish_sweep(start_sweep(tmp_path))
    assert_same_runs(undisturbed, tmp_path)
