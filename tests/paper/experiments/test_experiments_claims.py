"""One process at a time works on a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from babn_paper.experiments import claims
from babn_paper.experiments.claims import HOLDER, LOCK, BusyError, claimed, holder

HOLD = """
import sys, time
from pathlib import Path
from babn_paper.experiments.claims import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def other_machine(folder: Path, age: float) -> None:
    """A claim as another machine leaves it, touched some seconds ago."""
    path = folder / HOLDER
    path.write_text(json.dumps({"machine": "elsewhere", "process": 7}))
    os.utime(path, (time.time() - age,) * 2)


def test_a_second_claim_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with claimed(tmp_path):
        assert f"process {os.getpid()} of" in str(holder(tmp_path))
        with pytest.raises(BusyError, match=f"is being written by process {os.getpid()} of"):
            claimed(tmp_path).__enter__()
    assert holder(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert f"process {process.pid} of" in str(holder(tmp_path))
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / HOLDER).exists()  # it could not clean up
    assert holder(tmp_path) is None
    with claimed(tmp_path):
        assert f"process {os.getpid()} of" in str(holder(tmp_path))


@pytest.mark.parametrize("can_lock", [True, False])
def test_a_claim_of_another_machine_counts_until_it_shows_no_life(
    tmp_path: Path, can_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_lock:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    other_machine(tmp_path, age=claims.EXPIRES - 5)
    assert holder(tmp_path) == "process 7 of elsewhere"
    with pytest.raises(BusyError, match=r"process 7 of elsewhere\. If that has ended, wait 60 sec"):
        claimed(tmp_path).__enter__()
    other_machine(tmp_path, age=claims.EXPIRES + 5)
    assert holder(tmp_path) is None
    with claimed(tmp_path):
        assert f"process {os.getpid()} of" in str(holder(tmp_path))


def test_a_claim_shows_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT", 0.02)
    with claimed(tmp_path):
        os.utime(tmp_path / HOLDER, (0, 0))
        time.sleep(0.3)
        assert time.time() - (tmp_path / HOLDER).stat().st_mtime < 10


def test_a_folder_that_is_not_there_is_nobodys(tmp_path: Path) -> None:
    assert holder(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()
