"""A process that runs experiments one after the other, as another process tells it.

Reads folders of prepared runs from standard input, one a line, and answers each with one line:
nothing for a run that came to its end, or what went wrong.
"""

import sys
import traceback
from pathlib import Path

from babn.errors import BabnError, one_line
from babn.experiments.run import run
from babn.experiments.run_folder import RunFolder

INTERRUPTED = "interrupted"
"""The answer of a run that Ctrl-C has stopped."""


def work() -> None:
    """Runs what comes, until nothing comes."""
    reply = sys.stdout
    sys.stdout = sys.stderr  # whatever prints must not be taken for an answer
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        print(outcome(folder), file=reply, flush=True)


def outcome(folder: Path) -> str:
    """Runs an experiment, and returns what went wrong, if anything did."""
    try:
        run(RunFolder(folder).experiment(), folder, resume=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # one run must not stop the others
        RunFolder(folder).trace.write_text(traceback.format_exc())
        known = isinstance(error, BabnError | OSError)
        return one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"
    return ""


if __name__ == "__main__":
    work()
