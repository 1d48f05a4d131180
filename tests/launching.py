"""Starting processes as torchrun does."""

import os
import subprocess
import sys
from pathlib import Path

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def start_torchrun(*arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
    """Two processes of a script, or of a module after `-m`."""
    return subprocess.Popen(
        [*TORCHRUN, *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def torchrun(*arguments: str, cwd: Path | None = None) -> str:
    """What two processes print that end well."""
    run = start_torchrun(*arguments, cwd=cwd)
    output, _ = run.communicate(timeout=240)
    assert run.returncode == 0, output[-3000:]
    return output
