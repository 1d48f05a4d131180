"""Measures steps on a GPU, each in its own process; all processes compile at the same time.

Compilation takes a minute or two for each model on one core. All processes compile and warm up in
parallel. Then they are timed in turns, in several rounds, while the others wait without using the
GPU: short steps are bound by the CPU, whose speed varies with other load.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from babn.benchmark.results import Cost
from babn.benchmark.timing import Step, cost_of, seconds_of, warm_up
from babn.errors import BabnError, is_out_of_memory
from babn.progress import sigint_blocked

MakeStep = Callable[[torch.device], Step]

READY = "ready"

ROUNDS = 3
"""Number of rounds over which the repetitions of each process are spread."""


def measured(
    makers: Sequence[MakeStep],
    device: torch.device,
    repeats: int,
    report: Callable[[str], None] = lambda text: None,
    profiled: bool = True,
) -> Iterator[Cost | None]:
    """The cost of each step, in order; `None` where GPU memory was too small."""
    workers: list[Worker] = []
    try:
        with sigint_blocked():
            workers += [Worker(maker, device) for maker in makers]
        fitting = _wait_for(workers, report)
        for _ in range(rounds := min(ROUNDS, repeats)):
            for worker in fitting:
                worker.request(repeats // rounds)
        for worker in workers:
            yield worker.request(profiled) if worker in fitting else None
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


class Worker:
    """A process with a step, which waits for requests."""

    def __init__(self, maker: MakeStep, device: torch.device) -> None:
        context = get_context("spawn")
        self.line, line = context.Pipe()
        self.process = context.Process(target=_work, args=(maker, device, line), daemon=True)
        self.process.start()
        line.close()

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


def _wait_for(workers: Sequence[Worker], report: Callable[[str], None]) -> list[Worker]:
    """Waits until all workers have warmed up; returns those that fit into memory."""
    waiting, fitting = list(workers), []
    while waiting:
        done = len(workers) - len(waiting)
        report(f"compiling on all cores, {done} of {len(workers)} done")
        ready = wait([worker.line for worker in waiting])
        for worker in [each for each in waiting if each.line in ready]:
            waiting.remove(worker)
            if worker.receive() == READY:
                fitting.append(worker)
    return [worker for worker in workers if worker in fitting]


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
