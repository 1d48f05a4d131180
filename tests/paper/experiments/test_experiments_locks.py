"""The lock of a run folder has one holder at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from babn_paper.experiments.run_folder import HOLDER, LOCK, BusyError, lock_folder, lock_holder

HOLD = """
import sys, time
from pathlib import Path
from babn_paper.experiments.run_folder import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


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


def test_a_missing_folder_has_no_holder(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()
