"""The lock of a run folder has one holder at a time."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from babn_paper.experiments import locks
from babn_paper.experiments.locks import HOLDER, LOCK, BusyError, lock_folder, lock_holder

HOLD = """
import sys, time
from pathlib import Path
from babn_paper.experiments.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def other_machine(folder: Path, age: float) -> None:
    """The lease of another machine, touched some seconds ago."""
    path = folder / HOLDER
    path.write_text(json.dumps({"machine": "elsewhere", "process": 7}))
    os.utime(path, (time.time() - age,) * 2)


def test_the_lock_has_one_holder_whom_errors_name(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        assert f"process {os.getpid()} of" in str(lock_holder(tmp_path))
        with pytest.raises(BusyError, match=f"is being written by process {os.getpid()} of"):
            lock_folder(tmp_path).__enter__()
    assert lock_holder(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert f"process {process.pid} of" in str(lock_holder(tmp_path))
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / HOLDER).exists()  # it could not clean up
    assert lock_holder(tmp_path) is None
    with lock_folder(tmp_path):
        assert f"process {os.getpid()} of" in str(lock_holder(tmp_path))


@pytest.mark.parametrize("can_lock", [True, False])
def test_the_lease_of_another_machine_expires(
    tmp_path: Path, can_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_lock:

        def acquire(lock: FileLock) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(FileLock, "acquire", acquire)
    other_machine(tmp_path, age=locks.EXPIRES - 5)
    assert lock_holder(tmp_path) == "process 7 of elsewhere"
    with pytest.raises(
        BusyError, match=r"process 7 of elsewhere\. If that process has ended, wait 60"
    ):
        lock_folder(tmp_path).__enter__()
    other_machine(tmp_path, age=locks.EXPIRES + 5)
    assert lock_holder(tmp_path) is None
    with lock_folder(tmp_path):
        assert f"process {os.getpid()} of" in str(lock_holder(tmp_path))


def test_the_holder_touches_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT", 0.02)
    with lock_folder(tmp_path):
        os.utime(tmp_path / HOLDER, (0, 0))
        time.sleep(0.3)
        assert time.time() - (tmp_path / HOLDER).stat().st_mtime < 10


def test_a_missing_folder_has_no_holder(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()
