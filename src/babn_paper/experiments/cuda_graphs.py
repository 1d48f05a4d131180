"""Captures calls as CUDA graphs, which replay all of their kernels in one launch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class CudaRecorder:
    """Captures calls on the current stream; they share a memory pool and must not overlap."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, call: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Captures a call without running it; returns its results and the replay function."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, self.pool, stream, capture_error_mode="thread_local"):
            result = call()
        self.pool = self.pool or graph.pool()
        return result, graph.replay


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Runs on a new stream, since the default stream of a GPU cannot be captured."""
    stream, default = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(default)
    with torch.cuda.stream(stream):
        yield
    default.wait_stream(stream)
