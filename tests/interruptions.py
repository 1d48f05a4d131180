"""Programs that are interrupted as a terminal does it."""

import os
import signal
import subprocess
import sys


def told_after_ctrl_c(program: str, lines: int) -> tuple[list[str], str]:
    """The first lines of a program, and what it and its children say when Ctrl-C follows them."""
    with subprocess.Popen(
        [sys.executable, "-c", program], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        printed = [process.stdout.readline().rstrip("\n") for _ in range(lines)]
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    return printed, errors
