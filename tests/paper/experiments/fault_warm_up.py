"""Imported by the process from which runs are forked: all that a run loads is loaded then."""

import os
import tempfile
from pathlib import Path

from small_experiments import tiny

from babn_paper.experiments.run import run

with tempfile.TemporaryDirectory() as folder:
    os.environ["BABN_CACHE"] = f"{folder}/cache"
    run(tiny(steps=1), Path(folder) / "run")
