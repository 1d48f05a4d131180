"""How processes find each other, also after torchrun has started them again."""

import json
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

PAUSE = 0.05
"""Seconds between looks at the store."""


def fresh_store(timeout: timedelta) -> tuple[Store, int, int]:
    """A store for a process group, this process's rank, and the number of processes.

    torchrun keeps one store over restarts, so that it holds addresses of processes that have died;
    who takes one of those waits for it in vain. Neither can the number of the restart tell stores
    apart, since machines count by themselves. So the processes agree on a name for each start.

    Args:
        timeout: How long to wait for others.
    """
    store, rank, count = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(agreed_name(store, rank, count), store), rank, count


def agreed_name(store: Store, rank: int, count: int) -> str:
    """A name that living processes alone agree on.

    Every process writes a greeting that nobody has used before. The first one writes a name beside
    all the greetings it has read, again when they change, until all others have confirmed the name;
    they confirm the one that stands beside their own greeting.
    """
    mine = uuid.uuid4().hex
    if rank == 0:
        return _name_for_all(store, mine, count)
    store.set(f"greeting/{rank}", mine)
    found = _until(lambda: _announced(store, mine))
    store.set(f"confirmed/{found}/{rank}", "")
    return found


def _announced(store: Store, greeting: str) -> str:
    """The name beside a greeting, if it is there."""
    if not store.check(["announced"]):
        return ""
    said = json.loads(store.get("announced"))
    return str(said["name"]) if greeting in said["greetings"] else ""


def _name_for_all(store: Store, name: str, count: int) -> str:
    def confirmed() -> str:
        greetings = [f"greeting/{rank}" for rank in range(1, count)]
        seen = [store.get(key).decode() for key in greetings if store.check([key])]
        store.set("announced", json.dumps({"name": name, "greetings": seen}))
        answers = [f"confirmed/{name}/{rank}" for rank in range(1, count)]
        return name if store.check(answers) else ""

    return _until(confirmed)


def _until(look: Callable[[], str]) -> str:
    while not (found := look()):
        time.sleep(PAUSE)
    return found
