"""Time and memory of steps."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from babn.benchmark.results import Cost

Step = Callable[[], None]

WARM_UP = 5
"""Steps before the measured ones."""

LISTED = 40
"""Number of kernels that are listed by name."""


def measure(step: Step, device: torch.device, repeats: int) -> Cost:
    """The cost of a step on a GPU, after steps in which everything is compiled and captured.

    Peak memory is counted from the second step on: the first one compiles, and CUDA graphs, which
    have their own memory pool, are captured later.
    """
    for index in range(WARM_UP):
        if index == 1:
            free(device)
            torch.cuda.reset_peak_memory_stats(device)
        step()
    torch.cuda.synchronize(device)
    times = [_seconds(step, device) for _ in range(repeats)]
    memory, kernels = torch.cuda.max_memory_allocated(device), _kernels(step, device)
    busy = sum(kernel["seconds"] for kernel in kernels)
    return Cost(statistics.median(times), _half_range(times), memory, busy, kernels[:LISTED])


def measure_in_turns(steps: Sequence[Step], repeats: int) -> list[Cost]:
    """The costs of steps on a CPU, run in alternation so that other load affects all alike."""
    cpu = torch.device("cpu")
    rounds = [[_seconds(step, cpu) for step in steps] for _ in range(repeats + 1)]
    columns = [list(times) for times in zip(*rounds[1:], strict=True)]
    return [Cost(statistics.median(times), _half_range(times), None) for times in columns]


def free(device: torch.device) -> None:
    """Frees unused memory, with that of compiled models that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _seconds(step: Step, device: torch.device) -> float:
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _half_range(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 2


def _kernels(step: Step, device: torch.device) -> list[dict[str, Any]]:
    """Name, seconds and calls of the kernels of a step, in descending order of time."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        step()
        torch.cuda.synchronize(device)
    found = [
        {"name": row.key, "seconds": row.self_device_time_total / 1e6, "calls": row.count}
        for row in seen.key_averages()
        if row.self_device_time_total
    ]
    return sorted(found, key=lambda kernel: -kernel["seconds"])
