"""Measuring in processes of their own, here without a GPU."""

import os
import time
from functools import partial

import pytest
import torch

from babn.benchmark.processes import measured
from babn.benchmark.timing import Step
from babn.errors import BabnError

CPU = torch.device("cpu")


def sleeper(seconds: float, device: torch.device) -> Step:
    return partial(time.sleep, seconds)


def too_large(device: torch.device) -> Step:
    raise torch.OutOfMemoryError("no memory left")


def killed(device: torch.device) -> Step:
    os._exit(9)


def test_costs_come_in_order_and_what_does_not_fit_has_none() -> None:
    said: list[str] = []
    missing, slow = measured([too_large, partial(sleeper, 0.05)], CPU, 3, said.append)
    assert missing is None and slow is not None and 0.05 <= slow.seconds < 0.5
    assert said[0] == "compiling on all cores, 0 of 2 done"


def test_a_process_that_dies_is_named() -> None:
    with pytest.raises(BabnError, match="exit code 9"):
        list(measured([killed], CPU, 1))
