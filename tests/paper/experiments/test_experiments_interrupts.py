"""What becomes of Ctrl-C."""

import signal
import subprocess
import sys

from babn.progress import sigint_blocked

ASK = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


def test_ctrl_c_is_held_back_and_children_never_hear_of_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with sigint_blocked():
            signal.raise_signal(signal.SIGINT)
            assert not heard
            child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
        assert heard == [signal.SIGINT]
        assert child.stdout == "True\n"
        child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
        assert child.stdout == "False\n"
    finally:
        signal.signal(signal.SIGINT, before)
