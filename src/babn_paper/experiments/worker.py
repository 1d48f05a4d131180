"""A worker process that executes runs one after another, as its parent process requests.

Reads runs from standard input, one JSON object with folder and experiment per line, and replies to
each with one line: empty for a finished run, or the error. When the parent process ends, the
current run writes a checkpoint and stops.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from babn.errors import BabnError, is_out_of_memory, one_line
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import BusyError, RunFolder

INTERRUPTED = "interrupted"
"""Reply for a run that SIGINT has stopped."""

BUSY = "another process works on it"
"""Reply for a run that another process has locked."""

OUT_OF_MEMORY = "out of memory; a smaller batch_size, max_length or number of samples takes less"
"""Reply for a run that is out of memory."""


def work(parent: int) -> None:
    """Executes the requested runs until standard input is closed.

    Args:
        parent: Process id of the parent.
    """
    _enable_sigint()
    reply = sys.stdout
    sys.stdout = sys.stderr  # printed text is not a reply
    threading.Thread(target=_interrupt_when_orphaned, args=(parent,), daemon=True).start()
    for line in sys.stdin:
        wanted = json.loads(line)
        experiment = Experiment.from_dict(wanted["experiment"])
        print(do_run(experiment, Path(wanted["folder"])), file=reply, flush=True)
        gc.collect()
        torch.cuda.empty_cache()  # frees cached memory for other processes


def do_run(experiment: Experiment, folder: Path) -> str:
    """Executes or resumes a run and returns its error message, or an empty string."""
    os.environ.pop("WORLD_SIZE", None)  # a run of a grid has a single process
    # The command recorded in environment.json is the one that does this run alone.
    sys.argv[1:] = ["train", f"{folder}/experiment.toml", "--out", str(folder), "--resume"]
    try:
        run(experiment, folder, resume=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BusyError:
        return BUSY
    except Exception as error:  # one run must not stop the others
        folder.mkdir(parents=True, exist_ok=True)
        RunFolder(folder).trace.write_text(traceback.format_exc())
        if is_out_of_memory(error):
            return OUT_OF_MEMORY
        known = isinstance(error, BabnError | OSError)
        return one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"
    return ""


def _enable_sigint() -> None:
    """Enables SIGINT, which a parent process such as Ray may have blocked."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _interrupt_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    work(int(sys.argv[1]))
