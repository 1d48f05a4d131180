"""A process that runs experiments one after the other, as another process tells it.

Reads folders of prepared runs from standard input, one a line, and answers each with one line:
nothing for a run that came to its end, or what went wrong. When the process that tells it ends, the
run in hand writes a checkpoint and stops.
"""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from babn.errors import BabnError, is_out_of_memory, one_line
from babn_paper.experiments.claims import BusyError
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunFolder

INTERRUPTED = "interrupted"
"""The answer of a run that Ctrl-C has stopped."""

BUSY = "another process works on it"
"""The answer of a run that is not ours to run."""

OUT_OF_MEMORY = "out of memory; a smaller batch_size, max_length or number of samples takes less"
"""The answer of a run that did not find enough memory."""


def work(parent: int) -> None:
    """Runs what comes, until nothing comes.

    Args:
        parent: The process that tells what to run.
    """
    _hear_ctrl_c()
    reply = sys.stdout
    sys.stdout = sys.stderr  # whatever prints must not be taken for an answer
    threading.Thread(target=_stop_when_alone, args=(parent,), daemon=True).start()
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        print(outcome(folder), file=reply, flush=True)
        gc.collect()
        torch.cuda.empty_cache()  # other processes may need what this one only keeps


def outcome(folder: Path) -> str:
    """Runs an experiment, and returns what went wrong, if anything did."""
    os.environ.pop("WORLD_SIZE", None)  # a run of a grid has one process, whatever started us
    # What records say that the run was made by: the command that does the same by itself.
    sys.argv[1:] = ["train", f"{folder}/experiment.toml", "--out", str(folder), "--resume"]
    try:
        run(RunFolder(folder).experiment(), folder, resume=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BusyError:
        return BUSY
    except Exception as error:  # one run must not stop the others
        RunFolder(folder).trace.write_text(traceback.format_exc())
        if is_out_of_memory(error):
            return OUT_OF_MEMORY
        known = isinstance(error, BabnError | OSError)
        return one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"
    return ""


def _hear_ctrl_c() -> None:
    """Undoes what a parent may have done to keep Ctrl-C from its children, as Ray does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _stop_when_alone(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    work(int(sys.argv[1]))
