"""Runs are handed out once, deaths are retried, and Ctrl-C stops everything."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from small_experiments import tiny

from babn.errors import ConfigError
from babn.files import replace_file
from babn.progress import Progress
from babn_paper.experiments import jobs, worker
from babn_paper.experiments.config_files import write_experiment
from babn_paper.experiments.engines import Engine, Job, Slot, WorkerDiedError
from babn_paper.experiments.jobs import run_all
from babn_paper.experiments.run_folder import RunFolder, write_json
from babn_paper.experiments.worker import BUSY, INTERRUPTED, OUT_OF_MEMORY, do_run

Behaviour = Callable[[Path, int], str]
"""What becomes of a run that is tried for the nth time."""


class Scripted(Engine):
    """Does no runs and replies as a script says."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.tried: list[Path] = []
        self.interrupted = threading.Event()
        self.closed = 0

    def slot(self, number: int) -> "ScriptedSlot":
        return ScriptedSlot(self)

    def close(self) -> None:
        pass


class ScriptedSlot(Slot):
    def __init__(self, engine: Scripted) -> None:
        self.engine = engine

    def run(self, job: Job) -> str:
        self.engine.tried.append(job.folder)
        answer = self.engine.behaviour(job.folder, self.engine.tried.count(job.folder))
        if not answer:
            folder = RunFolder(job.folder)
            folder.path.mkdir(exist_ok=True)
            replace_file(folder.config, partial(write_experiment, job.experiment))
            write_json(folder.results, {})
        return answer

    def interrupt(self) -> None:
        self.engine.interrupted.set()

    def close(self) -> None:
        self.engine.closed += 1


class Listening(Progress):
    def __init__(self) -> None:
        self.steps, self.lines = 0, list[str]()

    def step(self, count: int, note: str = "") -> None:
        self.steps += count

    def say(self, line: str) -> None:
        self.lines.append(line)


def some_jobs(folder: Path, count: int = 3) -> list[Job]:
    return [Job(tiny(seed=seed), folder / f"{seed}") for seed in range(count)]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAUSE", 0.01)


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_every_run_is_run_once(tmp_path: Path, parallel: int) -> None:
    engine, progress, wanted = Scripted(lambda *_: ""), Listening(), some_jobs(tmp_path, 4)
    assert run_all(wanted, parallel, progress, engine=engine) == {}
    assert sorted(engine.tried) == [job.folder for job in wanted]
    assert (progress.steps, engine.closed) == (4, min(parallel, 4))
    assert run_all(wanted, parallel, progress, engine=engine) == {}
    assert len(engine.tried) == 4


def dies(times: int) -> Behaviour:
    """The process of the first run dies some times."""

    def behaviour(folder: Path, attempt: int) -> str:
        if folder.name == "0" and attempt <= times:
            raise WorkerDiedError("its process ended with -9")
        return ""

    return behaviour


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_death_is_retried_so_often_and_told(tmp_path: Path, retries: int) -> None:
    engine, progress, wanted = Scripted(dies(retries)), Listening(), some_jobs(tmp_path)
    assert run_all(wanted, 2, progress, engine=engine, retries=retries) == {}
    assert engine.tried.count(tmp_path / "0") == retries + 1
    assert len(progress.lines) == retries and progress.steps == 3
    expected = f"{tmp_path}/0: its process ended with -9; restarted (1 of {retries})"
    assert progress.lines[:1] == [expected][:retries]


def test_too_many_deaths_are_a_failure_of_that_run_alone(tmp_path: Path) -> None:
    engine, progress = Scripted(dies(2)), Listening()
    failed = run_all(some_jobs(tmp_path), 1, progress, engine=engine, retries=1)
    assert failed == {tmp_path / "0": "its process ended with -9; repeat the command to resume"}
    assert [RunFolder(tmp_path / str(n)).state for n in range(3)] == ["absent", "done", "done"]


def test_an_error_is_not_retried(tmp_path: Path) -> None:
    engine = Scripted(lambda folder, _: "no data" if folder.name == "1" else "")
    assert run_all(some_jobs(tmp_path), 2, Listening(), engine=engine) == {
        tmp_path / "1": "no data"
    }
    assert engine.tried.count(tmp_path / "1") == 1


def test_a_run_without_enough_memory_goes_on_beside_fewer_others(tmp_path: Path) -> None:
    def behaviour(folder: Path, attempt: int) -> str:
        return OUT_OF_MEMORY if folder.name == "1" and attempt == 1 else ""

    engine, progress = Scripted(behaviour), Listening()
    assert run_all(some_jobs(tmp_path, 4), 3, progress, engine=engine) == {}
    assert engine.tried.count(tmp_path / "1") == 2 and len(engine.tried) == 5
    assert (progress.steps, engine.closed, len(progress.lines)) == (4, 3, 1)
    assert "out of memory beside other runs" in progress.lines[0]


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_a_run_without_enough_memory_by_itself_has_failed(tmp_path: Path, parallel: int) -> None:
    engine = Scripted(lambda folder, _: OUT_OF_MEMORY if folder.name == "0" else "")
    failed = run_all(some_jobs(tmp_path), parallel, Listening(), engine=engine)
    assert failed == {tmp_path / "0": OUT_OF_MEMORY}
    assert engine.tried.count(tmp_path / "0") <= parallel
    assert [RunFolder(tmp_path / str(n)).state for n in range(3)] == ["absent", "done", "done"]


def test_a_worker_tells_lack_of_memory_from_other_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(worker, "run", without_memory)
    assert do_run(tiny(), tmp_path) == OUT_OF_MEMORY
    assert "Tried to allocate 2.00 GiB" in RunFolder(tmp_path).trace.read_text()


def test_a_run_of_another_process_is_waited_for_and_not_run_again(tmp_path: Path) -> None:
    engine, progress = Scripted(lambda *_: ""), Listening()
    wanted = some_jobs(tmp_path)
    folder = RunFolder(wanted[0].folder)
    folder.begin(wanted[0].experiment)
    with folder.locked():
        thread = threading.Thread(
            target=run_all, args=(wanted, 2, progress), kwargs={"engine": engine}
        )
        thread.start()
        thread.join(0.3)
        assert thread.is_alive() and sorted(p.name for p in engine.tried) == ["1", "2"]
        write_json(folder.results, {})
    thread.join(5)
    assert not thread.is_alive() and len(engine.tried) == 2 and progress.steps == 3


def test_a_run_that_another_process_gives_up_is_taken_over(tmp_path: Path) -> None:
    engine = Scripted(lambda folder, attempt: BUSY if attempt == 1 else "")
    wanted = some_jobs(tmp_path)
    assert run_all(wanted, 1, Listening(), engine=engine, retries=0) == {}
    assert [engine.tried.count(job.folder) for job in wanted] == [2, 2, 2]


def test_ctrl_c_interrupts_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    engine: Scripted

    def behaviour(folder: Path, attempt: int) -> str:
        if folder.name == "0":
            os.kill(os.getpid(), signal.SIGINT)
        assert engine.interrupted.wait(5)
        return INTERRUPTED

    engine = Scripted(behaviour)
    with pytest.raises(KeyboardInterrupt):
        run_all(some_jobs(tmp_path, 6), 2, Listening(), engine=engine)
    assert len(engine.tried) <= 2 and engine.closed == 2


def test_a_death_after_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    engine: Scripted

    def behaviour(folder: Path, attempt: int) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        assert engine.interrupted.wait(5)
        raise WorkerDiedError("its process ended with -2")

    engine, progress = Scripted(behaviour), Listening()
    with pytest.raises(KeyboardInterrupt):
        run_all(some_jobs(tmp_path), 1, progress, engine=engine)
    assert len(engine.tried) == 1 and not progress.lines


def test_nothing_is_begun_where_a_folder_holds_another_run(tmp_path: Path) -> None:
    wanted = some_jobs(tmp_path)
    RunFolder(tmp_path / "2").begin(tiny(seed=2, batch_size=4))
    engine = Scripted(lambda *_: "")
    with pytest.raises(ConfigError, match=r"started with batch_size=4 \(now 8\)"):
        run_all(wanted, 2, Listening(), engine=engine)
    assert not engine.tried


def test_sweeps_that_begin_at_once_finish_every_run(tmp_path: Path) -> None:
    wanted = some_jobs(tmp_path, 8)
    engines = [Scripted(lambda *_: "") for _ in range(3)]
    threads = [
        threading.Thread(target=run_all, args=(wanted, 2, Listening()), kwargs={"engine": engine})
        for engine in engines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert all(RunFolder(job.folder).state == "done" for job in wanted)


def test_records_name_the_command_that_repeats_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not how its worker was called."""
    monkeypatch.setattr("sys.argv", ["worker.py", "4711"])
    folder = RunFolder(tmp_path / "run")
    assert do_run(tiny(steps=1, samples=1), folder.path) == ""
    expected = f"babn train {folder.path}/experiment.toml --out {folder.path} --resume"
    assert folder.read_environment()["command"] == expected
