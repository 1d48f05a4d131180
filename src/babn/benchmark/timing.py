"""Time and memory of steps."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Step = Callable[[], None]


@dataclass(frozen=True)
class Cost:
    """What a step takes.

    Attributes:
        seconds: Median time.
        spread: Half of the range between the quartiles.
        memory: Largest memory in use on the GPU in bytes; `None` on a CPU.
    """

    seconds: float
    spread: float
    memory: int | None


def measure(step: Step, device: torch.device, repeats: int, warmup: int = 5) -> Cost:
    """The cost of one step by itself.

    Memory is counted from the second step on: the first compiles, and CUDA graphs, which keep
    their memory to themselves, are recorded after it.
    """
    for index in range(warmup):
        if index == 1 and device.type == "cuda":
            free(device)
            torch.cuda.reset_peak_memory_stats(device)
        step()
    _synchronize(device)
    times = [_seconds(step, device) for _ in range(repeats)]
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Cost(statistics.median(times), _half_range(times), memory)


def measure_in_turns(steps: Sequence[Step], repeats: int) -> list[Cost]:
    """The costs of steps on a CPU, one of each in every round: others on the machine slow all."""
    cpu = torch.device("cpu")
    rounds = [[_seconds(step, cpu) for step in steps] for _ in range(repeats + 1)]
    columns = [list(times) for times in zip(*rounds[1:], strict=True)]
    return [Cost(statistics.median(times), _half_range(times), None) for times in columns]


def free(device: torch.device) -> None:
    """Gives back the memory of what was measured before."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _seconds(step: Step, device: torch.device) -> float:
    start = time.perf_counter()
    step()
    _synchronize(device)
    return time.perf_counter() - start


def _half_range(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
