"""Processes that are killed, and disks that are full, at any change to a run's folder."""

import json
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_runs import Fault, Outcome, run_with
from small_experiments import same_weights

from babn.tensor_files import read_tensors
from babn_paper.experiments.checkpoints import FILE, find_checkpoints
from babn_paper.experiments.log import read_log
from babn_paper.experiments.run_folder import RunFolder

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crashes")


@pytest.fixture(scope="module")
def whole(base: Path) -> Path:
    """A run to which nothing happens."""
    assert run_with(Fault(), base / "whole") == Outcome(0, "", told(base / "whole"))
    return base / "whole"


@pytest.fixture
def folder(base: Path) -> Iterator[Path]:
    yield base / "run"
    shutil.rmtree(base / "run", ignore_errors=True)


def told(folder: Path) -> tuple[str, ...]:
    """The changes that a run has made to its folder."""
    return tuple(folder.with_name(f"{folder.name}.report").read_text().splitlines()[:-1])


ALL = range(1, 71)
"""The changes that a run makes, and some more: other versions of packages make others."""


def places(count: int) -> list[int]:
    """Some changes of a run, spread over it."""
    return sorted(random.Random(count).sample(ALL[:55], count))


def check_kept(folder: Path) -> None:
    """Every checkpoint that has its name is whole."""
    for step, checkpoint in find_checkpoints(folder / "checkpoints"):
        assert read_tensors(checkpoint / FILE)[1] == {"step": str(step)}


def check_goes_on(folder: Path, whole: Path) -> None:
    """`--resume` comes to the weights, numbers and log of a run to which nothing happened."""
    check_kept(folder)
    outcome = run_with(Fault(), folder)
    assert (outcome.code, outcome.error) == (0, "")
    assert same_weights(folder, whole)
    one, other = RunFolder(folder), RunFolder(whole)
    assert one.read_results()["measures"] == other.read_results()["measures"]
    assert [line["loss"] for line in read_log(one)] == [line["loss"] for line in read_log(other)]
    assert not one.checkpoints.exists()


def test_every_change_is_counted(whole: Path) -> None:
    assert 55 <= len(told(whole)) <= len(ALL)


@pytest.mark.parametrize(
    "at",
    [
        *places(1),
        *places(2),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ALL),
    ],
)
def test_killed_at_a_change(at: int, folder: Path, whole: Path) -> None:
    if at > len(told(whole)):
        pytest.skip("there are not as many")
    outcome = run_with(Fault("kill", at), folder)
    assert outcome.code == -signal.SIGKILL and len(outcome.changes) == at
    check_goes_on(folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_killed_again_and_again(seed: int, folder: Path, whole: Path) -> None:
    generator = random.Random(seed)
    for _ in range(5):
        run_with(Fault("kill", generator.randint(1, 40)), folder)
        check_kept(folder)
    check_goes_on(folder, whole)


@pytest.mark.parametrize(
    "at", [*places(2), *(pytest.param(n, marks=pytest.mark.slow) for n in ALL)]
)
@pytest.mark.parametrize("lasting", [False, True])
def test_disk_full_at_a_change(at: int, lasting: bool, folder: Path, whole: Path) -> None:
    outcome = run_with(Fault("full", at, lasting), folder)
    assert outcome.code == 0  # no error but babn's and the system's
    if outcome.error:
        assert "No space left on device" in outcome.error
        assert str(folder) in outcome.error
    check_goes_on(folder, whole)


@pytest.mark.parametrize(
    "limit", [200_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (3_000, 70_000))]
)
def test_no_file_may_grow(limit: int, folder: Path, whole: Path) -> None:
    """The system stops writing in the middle of a file."""
    outcome = run_with(Fault("limit", limit), folder)
    assert outcome.code == 0
    assert "cannot be written" in outcome.error and "File too large" in outcome.error
    assert not list(folder.rglob("*.partial"))
    check_goes_on(folder, whole)


def test_a_full_disk_leaves_the_checkpoints_before(folder: Path, whole: Path) -> None:
    names = [Path(line.split(" ", 1)[1]).parent.name for line in told(whole)]
    third = [i for i, name in enumerate(names, 1) if name == ".partial"][4]
    outcome = run_with(Fault("full", third, lasting=True), folder)
    assert outcome.error.startswith(f"The checkpoint of step 3 cannot be written to {folder}")
    assert "--resume continues" in outcome.error
    assert [step for step, _ in find_checkpoints(folder / "checkpoints")] == [2, 1]
    check_goes_on(folder, whole)


def test_the_log_of_a_killed_run_may_end_anywhere(folder: Path, whole: Path) -> None:
    logged = [i for i, line in enumerate(told(whole), 1) if line.endswith("/log.jsonl")]
    run_with(Fault("kill", logged[2] + 1), folder)
    log = folder / "log.jsonl"
    assert [step for step, _ in find_checkpoints(folder / "checkpoints")] == [2, 1]
    log.write_bytes(log.read_bytes()[:-20])
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()[:2]] == [1, 2]
    check_goes_on(folder, whole)
