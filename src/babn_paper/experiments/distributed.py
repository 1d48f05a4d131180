"""Data-parallel training of one model by the processes that torchrun starts.

The experiments use `DistributedDataParallel` directly instead of Accelerate, for three reasons:

- A resumed run has the same weights, bit for bit, as an uninterrupted one. With several processes
  the noise depends on seed, step and rank only (`World.seed_step`), so rank zero alone writes
  checkpoints. Accelerate saves and restores a random state for each process.
- The step function of a single process is recorded as CUDA graphs, which need gradients at fixed
  addresses and a stream of their own (`graph_steps.py`). The training loop is the same with and
  without graphs, so it calls `backward` and the optimizer itself.
- torchrun restarts all processes after a failure but keeps its rendezvous store (`fresh_store`).
  Accelerate initializes the process group from the environment, with that store.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from babn.attention.noise_source import fold_in
from babn.errors import LeaderError, one_line

Item = TypeVar("Item")

TIMEOUT = timedelta(hours=1)
"""How long a collective waits for a busy process; the death of a process is noticed at once."""

SETTLING = 0.1
"""Seconds given to gloo's threads before the process group is destroyed."""

POLL = 0.05
"""Seconds between reads of the rendezvous store."""


@dataclass(frozen=True)
class World:
    """The processes that train one model, as seen from one of them.

    Attributes:
        rank: Rank of this process.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def from_rank_zero(self, action: Callable[[], Item]) -> Item:
        """Runs an action on rank zero and returns its result on all ranks.

        If the action fails, all ranks raise.
        """
        if self.size == 1:
            return action()
        message: list[Any] = [None, None]  # result, error
        if self.is_rank_zero:
            try:
                message[0] = action()
            except BaseException as error:
                message[1] = one_line(error)
                dist.broadcast_object_list(message)
                raise
        dist.broadcast_object_list(message)
        if message[1] is not None:
            raise LeaderError(message[1])
        return message[0]

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank."""
        if self.size == 1:
            return flag
        reduced = torch.tensor(int(flag))
        dist.all_reduce(reduced, dist.ReduceOp.MAX)
        return bool(reduced)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over ranks."""
        if self.size > 1:
            dist.all_reduce(values)
        return values / self.size

    def gather(self, items: list[Item]) -> list[Item]:
        """The items of all ranks, in the order of ranks."""
        if self.size == 1:
            return items
        lists: list[Any] = [None] * self.size
        dist.all_gather_object(lists, items)
        return [item for each in lists for item in each]

    def wrap(self, model: nn.Module) -> nn.Module:
        """A model whose gradients are averaged over ranks."""
        if self.size == 1:
            return model
        # A forward pass may skip parameters: unused heads, dropped layers.
        return DistributedDataParallel(model, find_unused_parameters=True)

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[None]:
        """Skips the averaging of gradients while more micro-batches of a step follow."""
        return model.no_sync() if more and self.size > 1 else nullcontext()  # type: ignore[operator]

    def seed_step(self, seed: int, step: int) -> None:
        """Seeds the noise of a step, differently on each rank.

        The noise depends on seed, step and rank only, so that checkpoints do not store the random
        states of all ranks. A single process keeps its running random state.
        """
        if self.size > 1:
            torch.manual_seed(fold_in(fold_in(seed, step), self.rank))


SINGLE = World()
"""A single process."""


def current_world() -> World:
    """Rank and size of the initialized process group, or a single process."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return SINGLE


@contextmanager
def process_group() -> Iterator[World]:
    """Initializes the process group within the block if torchrun started this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_world()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    store, rank, size = fresh_store(TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield current_world()
    finally:
        # Gloo's threads may still need the GIL to release reduced tensors. If DDP outlives the
        # group, torch waits for these threads while it holds the GIL: a deadlock.
        time.sleep(SETTLING)
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether torchrun restarted this command after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def fresh_store(timeout: timedelta) -> tuple[Store, int, int]:
    """A store for a process group, the rank of this process and the number of processes.

    torchrun keeps one store over restarts, which still holds addresses of dead processes; a process
    that reads one of them hangs. The restart count cannot separate the attempts either, since every
    machine counts on its own. The processes therefore agree on a prefix for each start.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(agree_on_prefix(store, rank, size), store), rank, size


def agree_on_prefix(store: Store, rank: int, size: int) -> str:
    """A key prefix that only the living processes agree on.

    Every process publishes a unique token. Rank zero announces a prefix together with the tokens it
    has read, again and again until all other ranks have confirmed it. A rank confirms the prefix
    that was announced together with its own token.
    """
    token = uuid.uuid4().hex
    if rank == 0:
        return _announce(store, token, size)
    store.set(f"greeting/{rank}", token)
    prefix = _poll(lambda: _announced_with(store, token))
    store.set(f"confirmed/{prefix}/{rank}", "")
    return prefix


def _announced_with(store: Store, token: str) -> str:
    """The announced prefix if it was announced with this token, else an empty string."""
    if not store.check(["announced"]):
        return ""
    announced = json.loads(store.get("announced"))
    return str(announced["name"]) if token in announced["greetings"] else ""


def _announce(store: Store, prefix: str, size: int) -> str:
    def confirmed() -> str:
        keys = [f"greeting/{rank}" for rank in range(1, size)]
        tokens = [store.get(key).decode() for key in keys if store.check([key])]
        store.set("announced", json.dumps({"name": prefix, "greetings": tokens}))
        confirmations = [f"confirmed/{prefix}/{rank}" for rank in range(1, size)]
        return prefix if store.check(confirmations) else ""

    return _poll(confirmed)


def _poll(read: Callable[[], str]) -> str:
    while not (found := read()):
        time.sleep(POLL)
    return found
