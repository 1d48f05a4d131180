"""Two processes with half of each batch do what one process does with all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=two_processes.SETTINGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first of two processes wrote."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    run = subprocess.run(
        [*torchrun, two_processes.__file__, str(folder), request.param],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


@pytest.mark.parametrize("task", two_processes.TASKS)
def test_weights_are_those_of_the_joined_batch(folder: Path, tmp_path: Path, task: str) -> None:
    expected, _ = two_processes.train(tmp_path, task, batch=8)
    found = torch.load(folder / f"{task}.pt", weights_only=True)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("task", two_processes.TASKS)
def test_logs_are_averaged_over_processes(folder: Path, tmp_path: Path, task: str) -> None:
    _, expected = two_processes.train(tmp_path, task, batch=8)
    found = json.loads((folder / f"{task}.json").read_text())
    assert len(found) == 2
    for one, other in zip(expected, found, strict=True):
        for name in [n for n in one if n.startswith(("loss", "nll", "kl"))]:
            assert other[name] == pytest.approx(one[name], rel=1e-4), name
