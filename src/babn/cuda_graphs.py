"""CUDA graphs: calls that are recorded once, and launched as a whole from then on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class CudaRecorder:
    """Records calls on the current stream; they share memory, so that they may never overlap."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, call: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Records a call without running it; returns where results will be, and what runs it."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, self.pool, stream, capture_error_mode="thread_local"):
            result = call()
        self.pool = self.pool or graph.pool()
        return result, graph.replay


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream that can be recorded, which the usual one of a GPU cannot."""
    stream, usual = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(usual)
    with torch.cuda.stream(stream):
        yield
    usual.wait_stream(stream)
