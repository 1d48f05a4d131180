"""The processes that train one model together, as torchrun starts them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from babn.attention.noise_source import fold_in
from babn.errors import LeaderError, one_line
from babn_paper.experiments.rendezvous import fresh_store

Item = TypeVar("Item")

PATIENCE = timedelta(hours=1)
"""How long processes wait for one that is busy; for one that has died they do not wait."""

SETTLING = 0.1
"""Seconds for threads to come to rest before the process group ends."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train one model.

    Attributes:
        rank: Its number.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and tells."""
        return self.rank == 0

    def lead(self, action: Callable[[], Item]) -> Item:
        """What the first process comes to by an action, in all processes; they fail together."""
        if self.count == 1:
            return action()
        told: list[Any] = [None, None]
        if self.first:
            try:
                told[0] = action()
            except BaseException as error:
                told[1] = one_line(error)
                dist.broadcast_object_list(told)
                raise
        dist.broadcast_object_list(told)
        if told[1] is not None:
            raise LeaderError(told[1])
        return told[0]

    def any(self, here: bool) -> bool:
        """Whether something is so in any process."""
        if self.count == 1:
            return here
        flag = torch.tensor(int(here))
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def mean(self, values: Tensor) -> Tensor:
        """The average over processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values / self.count

    def gathered(self, items: list[Item]) -> list[Item]:
        """The items of all processes, those of the first one first."""
        if self.count == 1:
            return items
        lists: list[Any] = [None] * self.count
        dist.all_gather_object(lists, items)
        return [item for each in lists for item in each]

    def joined(self, model: nn.Module) -> nn.Module:
        """A model whose gradients are averaged over processes."""
        if self.count == 1:
            return model
        # Which parameters a step leaves out is for the model to say: unused heads, dropped layers.
        return DistributedDataParallel(model, find_unused_parameters=True)

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[None]:
        """Where gradients stay in this process, if more are to come before they are averaged."""
        return model.no_sync() if more and self.count > 1 else nullcontext()  # type: ignore[operator]

    def seed_step(self, seed: int, step: int) -> None:
        """Begins the noise of a step, other noise in each process.

        It follows from seed, step and process alone, so that checkpoints need not hold it.
        """
        if self.count > 1:
            torch.manual_seed(fold_in(fold_in(seed, step), self.rank))


ALONE = Processes()
"""A process without others."""


def processes() -> Processes:
    """This process among those of the process group; alone if there is none."""
    if dist.is_available() and dist.is_initialized():
        return Processes(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def process_group() -> Iterator[Processes]:
    """Joins the processes that torchrun has started, if it has, until the block ends."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield processes()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    store, rank, count = fresh_store(PATIENCE)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield processes()
    finally:
        # Threads of gloo may be about to give up what they reduced, for which they need Python's
        # lock. If DDP outlives the group, torch waits for them with that lock in hand.
        time.sleep(SETTLING)
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun has started this command before and starts it again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
