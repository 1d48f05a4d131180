"""Measuring in processes of their own, here without a GPU."""

import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from babn.benchmark.gpu_processes import ROUNDS, MakeStep, measured
from babn.benchmark.timing import WARM_UP, Step
from babn.errors import BabnError
from interruptions import told_after_ctrl_c

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")


def sleeper(seconds: float, device: torch.device) -> Step:
    return partial(time.sleep, seconds)


def writer(path: Path, letter: str, device: torch.device) -> Step:
    def step() -> None:
        with path.open("a") as file:
            file.write(letter)

    return step


def too_large(device: torch.device) -> Step:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")


def too_large_for_a_library(device: torch.device) -> Step:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def broken(device: torch.device) -> Step:
    raise RuntimeError("sizes do not fit")


def killed(device: torch.device) -> Step:
    os._exit(9)


def test_costs_come_in_order_and_what_does_not_fit_has_none() -> None:
    said: list[str] = []
    makers = [too_large, too_large_for_a_library, partial(sleeper, 0.05)]
    *missing, slow = measured(makers, CPU, 3, said.append)
    assert missing == [None, None] and slow is not None and 0.05 <= slow.seconds < 0.5
    assert said[0] == "compiling on all cores, 0 of 3 done"


def test_processes_are_timed_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    first, second = measured([partial(writer, path, letter) for letter in "ab"], CPU, ROUNDS)
    assert first is not None and second is not None
    steps = WARM_UP + 1
    assert path.read_text()[2 * WARM_UP :] == (steps * "a" + steps * "b") * ROUNDS


@pytest.mark.parametrize(("maker", "code"), [(killed, 9), (broken, 1)])
def test_a_process_that_dies_is_named(maker: MakeStep, code: int) -> None:
    with pytest.raises(BabnError, match=f"exit code {code}"):
        list(measured([maker], CPU, 1))


def test_an_interruption_ends_all_processes_quietly() -> None:
    program = """
import time
from babn.benchmark.gpu_processes import measured

if __name__ == "__main__":
    print("begun", flush=True)
    list(measured([time.sleep, time.sleep], 600, 1, lambda text: print(text, flush=True)))
"""
    printed, errors = told_after_ctrl_c(program, lines=2)
    assert printed == ["begun", "compiling on all cores, 0 of 2 done"]
    assert errors.count("Traceback") == 1  # its own
