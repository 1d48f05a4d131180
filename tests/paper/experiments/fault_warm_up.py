"""Imported by the process from which runs are forked: all that a run loads is loaded then."""

import os
import tempfile
from pathlib import Path

import torch
from small_experiments import tiny

from babn_paper.experiments.run import run

torch.set_num_threads(1)  # a process that is forked beside threads of OpenMP waits for them forever
with tempfile.TemporaryDirectory() as folder:
    os.environ["BABN_CACHE"] = f"{folder}/cache"
    run(tiny(steps=1), Path(folder) / "run")
