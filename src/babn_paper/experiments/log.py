"""The training log: running means of the loss terms, as JSON lines and for TensorBoard."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from babn.files import replace_file
from babn_paper.experiments.distributed import World
from babn_paper.experiments.run_folder import RunFolder


class LossMeter:
    """Accumulates the terms of the loss between two lines of the log.

    The sums stay on the device, so that a step does not wait for the GPU.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Starts a new line of the log."""
        self.total: Tensor | None = None
        self.bad: Tensor | None = None
        self.steps, self.since = 0, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block from the time of a step."""
        begin = time.perf_counter()
        yield
        self.since += time.perf_counter() - begin

    @property
    def seconds_per_step(self) -> float:
        """Mean training time of a step."""
        return (time.perf_counter() - self.since) / self.steps

    def add(self, step: int, terms: dict[str, Tensor]) -> None:
        """Adds the loss terms of a micro-batch of a step."""
        self.names = list(terms)
        values = torch.stack([term.detach().float() for term in terms.values()])
        self.total = values if self.total is None else self.total + values
        bad = torch.where(values.isfinite(), torch.inf, float(step))
        self.bad = bad if self.bad is None else self.bad.minimum(bad)

    def first_bad(self) -> tuple[int, str] | None:
        """The first step with a term that is not finite, and the name of that term."""
        found = [] if self.bad is None else self.bad.tolist()
        step = min(found, default=math.inf)
        if step == math.inf:
            return None
        # The loss comes first and is the sum of the others; the last bad term is the most specific.
        return int(step), self.names[len(found) - 1 - found[::-1].index(step)]

    def means(self, world: World) -> dict[str, float]:
        """The mean of each term over steps and ranks."""
        assert self.total is not None
        means = world.mean(self.total) / self.steps
        return dict(zip(self.names, means.tolist(), strict=True))


class Log:
    """Appends to a run's `log.jsonl`, and to TensorBoard's files if TensorBoard is installed.

    Args:
        run: The run.
        step: The step that training resumes from; later lines are removed.
    """

    def __init__(self, run: RunFolder, step: int = 0) -> None:
        self._path = run.log
        if run.log.exists():
            kept = [line for line in read_log(run) if line["step"] <= step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            replace_file(run.log, lambda path: path.write_text(text))
        self._board = _summary_writer(run, step)

    def write(self, values: dict[str, Any]) -> None:
        """Appends a line; `values` contains the step."""
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, values["step"])

    def close(self) -> None:
        """Flushes TensorBoard's files."""
        if self._board is not None:
            self._board.close()


def read_log(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of a run's log, up to the first incomplete or damaged one."""
    lines: list[dict[str, Any]] = []
    for text in run.log.read_bytes().splitlines() if run.log.exists() else []:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            break
        lines.append(line)
    return lines


def _summary_writer(run: RunFolder, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run.tensorboard), purge_step=step)
