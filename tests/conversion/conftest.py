"""Ways around the shape checks, for what cannot run under them."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest


@pytest.fixture(scope="session")
def unchecked() -> Iterator[Callable[..., Any]]:
    """Calls a function in another process, where no shape is checked.

    `torch.compile` traces the checks as well, and cannot, even when they are switched off.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()
