"""A command that failed leaves nothing behind that blocks the corrected one."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from small_experiments import tiny

from babn.errors import BabnError, BabnWarning, ConfigError, StorageError
from babn.progress import Progress
from babn_paper.experiments import evaluation
from babn_paper.experiments.engines import Engine, Job, Slot
from babn_paper.experiments.evaluation import evaluate, remeasure
from babn_paper.experiments.jobs import run_all
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunFolder, write_json
from babn_paper.experiments.worker import do_run

pytestmark = pytest.mark.thorough

WRONG: list[dict[str, Any]] = [
    {"task": "mrpx"},
    {"options": {"beam": 3}},
    {"data": "/nowhere"},
    {"model": "/no/such/model"},
    {"settings": {"max_length": 3}},
    {"task": "stsb", "label_smoothing": 0.1},
]


def test_a_failed_configuration_does_not_keep_the_folder_from_the_right_one(
    tmp_path: Path,
) -> None:
    for fields in WRONG:
        with pytest.raises(BabnError):
            run(tiny(**fields), tmp_path / "run")
        assert RunFolder(tmp_path / "run").state == "absent", fields
    results = run(tiny(steps=1), tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_results() == results
    with pytest.raises(ConfigError, match="mrpx"):  # and a finished run is not lost to a mistake
        run(tiny(task="mrpx"), tmp_path / "run", overwrite=True)
    assert RunFolder(tmp_path / "run").read_results() == results


def test_an_unknown_task_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mrpx"):
        run(tiny(task="mrpx"), tmp_path / "run")
    wanted = [Job(tiny(), tmp_path / "0"), Job(tiny(task="mrpx"), tmp_path / "1")]
    with pytest.raises(ConfigError, match="mrpx"):
        run_all(wanted, 1, Progress(), engine=InProcess())
    assert not list(tmp_path.iterdir())


class InProcess(Engine):
    """Runs what a worker would run, in this process."""

    def slot(self, number: int) -> "InProcessSlot":
        return InProcessSlot()

    def close(self) -> None:
        pass


class InProcessSlot(Slot):
    def run(self, job: Job) -> str:
        return do_run(job.experiment, job.folder)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_failed_sweep_does_not_keep_its_folders_from_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["babn"])
    for fields in ({"data": "/nowhere"}, {"model": "/no/such/model"}, {"steps": 1}):
        wanted = [Job(tiny(**fields), tmp_path / "0")]
        failed = run_all(wanted, 1, Progress(), engine=InProcess())
        place = RunFolder(tmp_path / "0")
        assert bool(failed) == ("steps" not in fields)
        assert place.state == ("absent" if failed else "done")
        assert place.trace.exists()  # of the last failure
    assert RunFolder(tmp_path / "0").experiment() == tiny(steps=1)


def test_a_sweep_that_is_refused_leaves_the_folders_of_others_free(tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "1")
    other.begin(tiny(seed=7))
    write_json(other.environment, {})
    wanted = [Job(tiny(seed=seed), tmp_path / f"{seed}") for seed in range(2)]
    with pytest.raises(ConfigError, match="was started with seed=7"):
        run_all(wanted, 1, Progress(), engine=InProcess())
    assert RunFolder(tmp_path / "0").state == "absent"
    assert other.experiment() == tiny(seed=7)


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run on a disk that has become read-only, as far as Python can tell."""
    place = tmp_path / "run"
    run(tiny(steps=1), place)

    def refuse(path: Any) -> None:
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def refusing(function: Any) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            refuse(path)
            return function(path, *args, **kwargs)

        return call

    for name in ("mkdir", "unlink", "rename", "replace", "rmdir", "utime"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    plain = Path.open

    def open_path(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            refuse(self)
        return plain(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_path)
    return place


def test_a_read_only_run_can_be_evaluated(
    read_only: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    before = RunFolder(read_only).read_results()
    assert remeasure(read_only) == before
    assert not [w for w in recwarn if issubclass(w.category, BabnWarning)]
    assert RunFolder(read_only).holder is None
    with pytest.warns(BabnWarning, match=r"not saved: .*run cannot be written.*Read-only"):
        again = evaluate(read_only, samples=2)
    assert again["measures"]["dev"]["mean"] == before["measures"]["dev"]["mean"]
    measure = evaluation.measure

    def newer(*args: Any) -> Any:
        found = measure(*args)
        found["dev"]["mean"]["accuracy"] = 2.0
        return found

    monkeypatch.setattr(evaluation, "measure", newer)
    with pytest.warns(BabnWarning, match=r"not saved: .*results\.json.*Read-only file system"):
        assert remeasure(read_only)["measures"]["dev"]["mean"]["accuracy"] == 2.0


def test_writing_to_a_read_only_disk_names_the_real_error(read_only: Path) -> None:
    for call in (
        lambda: run(tiny(), read_only.with_name("other")),
        lambda: write_json(read_only / "results.json", {}),
    ):
        with pytest.raises(StorageError, match=r"cannot be written: .*Read-only file system"):
            call()
