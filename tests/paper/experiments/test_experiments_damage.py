"""Runs whose files, settings, data or clock are not what they were: said exactly, or mended."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiments import StopsAt, same_weights, tiny

from babn.errors import BabnError, BabnWarning, ConfigError, DataError, FormatError, StorageError
from babn_paper.experiments import checkpoints, training
from babn_paper.experiments.cache import cache_folder
from babn_paper.experiments.checkpoints import FILE, find_checkpoints
from babn_paper.experiments.evaluation import evaluate, remeasure
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.log import read_log
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import TrainingState

pytestmark = pytest.mark.thorough

SHORT: dict[str, Any] = {"steps": 4, "checkpoint_every": 1, "samples": 2}


def short(**fields: Any) -> Experiment:
    return tiny(**SHORT | fields)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    run(short(), folder)
    return folder


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 3 and 2."""
    folder = tmp_path_factory.mktemp("crashed") / "run"
    with pytest.raises(RuntimeError, match="crash"):
        run(short(), folder, progress=StopsAt(3))
    return folder


@pytest.fixture
def copy(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "run"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Changes one bit of a weight."""
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [cut, flip, empty, Path.unlink]
SOME = [flip, *(pytest.param(each, marks=pytest.mark.slow) for each in (cut, empty, Path.unlink))]
"""For what takes seconds."""


@pytest.mark.parametrize("damage", SOME)
def test_the_checkpoint_before_a_damaged_one_is_taken(
    damage: Callable[[Path], None], copy: Path, done: Path
) -> None:
    (_, newest), (_, older) = find_checkpoints(copy / "checkpoints")
    damage(newest / FILE)
    before = (older / FILE).read_bytes()
    with pytest.warns(BabnWarning, match=rf"step-3/{FILE} .*Resuming from step 2\."):
        results = run(short(), copy, resume=True)
    assert before and same_weights(copy, done)
    assert results["measures"] == RunFolder(done).read_results()["measures"]


def test_without_any_whole_checkpoint_the_run_says_so_and_keeps_all(copy: Path) -> None:
    for _, checkpoint in find_checkpoints(copy / "checkpoints"):
        flip(checkpoint / FILE)
    with pytest.raises(FormatError, match=r"No checkpoint.*step-3.*step-2.*--overwrite"):
        run(short(), copy, resume=True)
    assert len(find_checkpoints(copy / "checkpoints")) == 2


def test_a_checkpoint_under_another_name_is_refused(copy: Path) -> None:
    (copy / "checkpoints/step-3").rename(copy / "checkpoints/step-4")
    with pytest.warns(BabnWarning, match=r"step-4 holds the checkpoint of step 3"):
        run(short(), copy, resume=True)


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 5}, {"settings": {"rho": 2.0}}])
def test_other_settings_are_named(change: dict[str, Any], copy: Path) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=rf"started with {name}=.* \(now .*Resume with the same"):
        run(short(**change), copy, resume=True)


def write_data(folder: Path, rows: list[tuple[str, str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    for part in ("train", "dev"):
        lines = [json.dumps(dict(zip(("sentence1", "sentence2", "label"), r))) for r in rows]  # noqa: B905
        (folder / f"{part}.jsonl").write_text("\n".join(lines))


def test_other_data_is_named(tmp_path: Path) -> None:
    rows = [(f"one {i}", f"two {i}", i % 2) for i in range(16)]
    write_data(tmp_path / "mrpc", rows)
    experiment = short(data=str(tmp_path))
    with pytest.raises(RuntimeError, match="crash"):
        run(experiment, tmp_path / "run", progress=StopsAt(2))
    write_data(tmp_path / "mrpc", rows[1:])
    with pytest.raises(DataError, match=r"started with other training data.*Resume with the same"):
        run(experiment, tmp_path / "run", resume=True)
    write_data(tmp_path / "mrpc", rows)
    assert run(experiment, tmp_path / "run", resume=True)["steps"] == 4


DAMAGED = [b"", b"{", b"[]\n", b'"x"\n', b"\xff\xfe\n", b"[" * 10_000]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_records_are_read_as_none(content: bytes, tmp_path: Path) -> None:
    place = RunFolder(tmp_path)
    for path in (place.environment, place.log):
        path.write_bytes(content)
    assert (place.read_environment(), read_log(place)) == ({}, [])


def test_records_that_are_damaged_do_not_stop_a_run(copy: Path, done: Path) -> None:
    (copy / "environment.json").unlink()
    (copy / "log.jsonl").write_bytes(b"\xff\xfe\n")
    run(short(), copy, resume=True)
    assert same_weights(copy, done)


@pytest.mark.parametrize("content", [b"", b"task = ", b"\xff", b"task = 3\nmodel = 'small'"])
def test_a_damaged_configuration_is_named(content: bytes, copy: Path, as_installed: None) -> None:
    (copy / "experiment.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"experiment\.toml"):
        run(short(), copy, resume=True)
    assert len(find_checkpoints(copy / "checkpoints")) == 2


def test_a_run_without_its_configuration_is_not_taken_for_a_new_one(copy: Path) -> None:
    (copy / "experiment.toml").unlink()
    with pytest.raises(BabnError, match="holds other files"):
        run(short(), copy, resume=True)
    assert len(find_checkpoints(copy / "checkpoints")) == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_named(
    damage: Callable[[Path], None], done: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(done, tmp_path / "run"))
    damage(folder / "model/model.safetensors")
    with pytest.raises(FormatError, match=r"model\.safetensors"):
        evaluate(folder)
    assert remeasure(folder)["measures"] == RunFolder(done).read_results()["measures"]


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *((damage, "answers.safetensors") for damage in DAMAGES),
        *((damage, "evaluation.json") for damage in DAMAGES if damage != flip),
    ],
)
def test_damaged_predictions_are_named(
    damage: Callable[[Path], None], name: str, done: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(done, tmp_path / "run"))
    damage(folder / "predictions/dev-mean" / name)
    with pytest.raises(FormatError, match="dev-mean"):
        remeasure(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b'{"measures": 3}', b"\xff", b"{}"])
def test_damaged_results_are_named(content: bytes, done: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(done, tmp_path / "run"))
    (folder / "results.json").write_bytes(content)
    for again in (lambda: run(short(), folder, resume=True), lambda: remeasure(folder)):
        with pytest.raises(FormatError, match=r"results\.json .*evaluate --again"):
            again()


@pytest.mark.parametrize("damage", SOME)
def test_a_damaged_cache_is_made_again(
    damage: Callable[[Path], None], done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache_folder()
    monkeypatch.setenv("BABN_CACHE", str(tmp_path / "cache"))
    shutil.copytree(before, tmp_path / "cache")
    files = list((tmp_path / "cache").glob("mrpc-*.safetensors"))
    assert files
    for file in files:
        damage(file)
    run(short(), tmp_path / "run")
    assert same_weights(tmp_path / "run", done)


def test_a_cache_that_cannot_be_written_is_done_without(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BABN_CACHE", str(tmp_path / "file" / "cache"))
    run(short(), tmp_path / "run")
    assert same_weights(tmp_path / "run", done)


def test_the_step_of_a_bad_batch_is_named_and_no_checkpoint_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of the log come every fourth step: the bad one is the third of them."""
    real = TrainingState.micro_batches

    def micro_batches(state: TrainingState, step: int, *world: Any) -> Any:
        for micro in real(state, step, *world):
            labels = torch.full_like(micro.batch["labels"], torch.nan)
            bad = {"labels": labels} if step == 22 else {}
            yield replace(micro, batch=micro.batch | bad)

    monkeypatch.setattr(TrainingState, "micro_batches", micro_batches)
    monkeypatch.setattr(training, "LINES", 10)
    experiment = tiny(task="stsb", steps=40, checkpoint_every=10, batch_size=2)
    for resume in (False, True):  # the same again, from the checkpoint
        with pytest.raises(
            training.TrainingError,
            match=r"The loss is not finite at step 23, with method='belief'.*checkpoint of step 20",
        ):
            run(experiment, tmp_path / "run", resume=resume)
        assert [s for s, _ in find_checkpoints(tmp_path / "run/checkpoints")] == [20, 10]
    monkeypatch.setattr(TrainingState, "micro_batches", real)
    assert run(experiment, tmp_path / "run", resume=True)["steps"] == 40


def test_a_clock_that_jumps_changes_nothing(
    copy: Path, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    for path in copy.rglob("*"):
        os.utime(path, (10**10, 10**10))  # as if written in the future
    run(short(), copy, resume=True)
    assert same_weights(copy, done)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/run"):
        run(short(), tmp_path / "file" / "run")


def test_a_read_only_folder_is_named(
    copy: Path, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system says it: a test that root runs may write everywhere."""

    def refused(path: Path, *rest: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_tensors", refused)
        with pytest.raises(
            StorageError, match=r"step 4 cannot be written.*make the folder writable"
        ):
            run(short(), copy, resume=True)
    run(short(), copy, resume=True)
    assert same_weights(copy, done)
