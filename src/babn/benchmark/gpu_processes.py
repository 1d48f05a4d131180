"""Measures candidates on a GPU, each in its own process; all processes compile at the same time.

Compilation takes a minute or two for each model on one core. All processes compile and warm up in
parallel. Then they are timed in turns, in several rounds, while the others wait without using the
GPU: short steps are bound by the CPU, whose speed varies with other load.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from babn.benchmark.timing import Cost, Step, cost_of, seconds_of, warm_up
from babn.errors import BabnError, is_out_of_memory
from babn.progress import sigint_blocked

MakeStep = Callable[[torch.device], Step]

READY = "ready"

ROUNDS = 3
"""Number of rounds over which the repetitions of each process are spread."""


@dataclass(frozen=True)
class Worker:
    """A process that waits for requests."""

    process: BaseProcess
    line: Connection

    def request(self, message: Any) -> Any:
        """Sends a request and returns the reply."""
        self.line.send(message)
        return self.receive()

    def receive(self) -> Any:
        """The next message of the process."""
        try:
            return self.line.recv()
        except EOFError as error:
            self.process.join()
            raise BabnError(
                "a process of the benchmark ended with exit code "
                f"{self.process.exitcode}: see its error above, and check the machine's memory"
            ) from error


def measured(
    makers: Sequence[MakeStep],
    device: torch.device,
    repeats: int,
    report: Callable[[str], None] = lambda text: None,
    profiled: bool = True,
) -> Iterator[Cost | None]:
    """The cost of each step, in order; `None` where GPU memory was too small."""
    started: list[Worker] = []
    try:
        with sigint_blocked():
            started += [_start(maker, device) for maker in makers]
        fits = _prepare(started, report)
        timed = [each for each, fitting in zip(started, fits, strict=True) if fitting]
        for _ in range(rounds := min(ROUNDS, repeats)):
            for each in timed:
                each.request(repeats // rounds)
        for each in started:
            yield each.request(profiled) if each in timed else None
    finally:
        for each in started:
            each.process.terminate()
            each.process.join()


def _prepare(started: Sequence[Worker], report: Callable[[str], None]) -> list[bool]:
    """Waits until all workers have warmed up; returns which of them fit into memory."""
    fits: dict[Connection, bool] = {}
    while len(fits) < len(started):
        report(f"compiling on all cores, {len(fits)} of {len(started)} done")
        left = [each for each in started if each.line not in fits]
        ready = wait([each.line for each in left])
        fits |= {each.line: each.receive() == READY for each in left if each.line in ready}
    return [fits[each.line] for each in started]


def _start(maker: MakeStep, device: torch.device) -> Worker:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(maker, device, there), daemon=True)
    process.start()
    there.close()
    return Worker(process, here)


def _work(maker: MakeStep, device: torch.device, line: Connection) -> None:
    """Compiles and warms up, then times as many steps as requested, and at the end sends the cost.

    A request is a number of steps, or at the end whether to profile.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    try:
        step = maker(device)
        warm_up(step, device)
        line.send(READY)
        times: list[float] = []
        while not isinstance(request := line.recv(), bool):
            times += seconds_of(step, device, request)
            line.send(None)
        line.send(cost_of(times, step, device, profiled=request))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        line.send(None)
