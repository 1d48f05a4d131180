"""The lock of a run folder has one holder at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from babn_paper.experiments.run_folder import HOLDER, LOCK, BusyError, RunFolder

HOLD = """
import sys, time
from pathlib import Path
from babn_paper.experiments.run_folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_has_one_holder_whom_errors_name(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        assert f"process {os.getpid()} of" in str(RunFolder(tmp_path).holder)
        with pytest.raises(BusyError, match=f"is being written by process {os.getpid()} of"):
            RunFolder(tmp_path).locked().__enter__()
    assert RunFolder(tmp_path).holder is None
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.thorough
def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert f"process {process.pid} of" in str(RunFolder(tmp_path).holder)
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / HOLDER).exists()  # it could not clean up
    assert RunFolder(tmp_path).holder is None
    with RunFolder(tmp_path).locked():
        assert f"process {os.getpid()} of" in str(RunFolder(tmp_path).holder)


def test_a_missing_folder_has_no_holder(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "absent").holder is None
    assert not (tmp_path / "absent").exists()
