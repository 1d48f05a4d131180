"""Processes find each other, and never those that have died."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, Store

from babn_paper.experiments.distributed import agree_on_prefix

pytestmark = pytest.mark.thorough


def start(store: Store, count: int) -> list[str]:
    with ThreadPoolExecutor(count) as pool:
        found = [pool.submit(agree_on_prefix, store, rank, count) for rank in range(count)]
        return [each.result(timeout=20) for each in found]


@pytest.mark.parametrize("count", [2, 5])
def test_all_agree_and_every_start_has_a_name_of_its_own(count: int) -> None:
    store = HashStore()
    names = [start(store, count) for _ in range(3)]
    assert [len(set(each)) for each in names] == [1, 1, 1]
    assert len({each[0] for each in names}) == 3


@pytest.mark.parametrize("dead", [0, 1])
def test_a_process_that_has_died_on_the_way_is_not_waited_for(dead: int) -> None:
    """It leaves its greeting or its announcement, and the next start comes through all the same."""
    store = HashStore()
    store.set("greeting/1", "of a dead process")
    if dead == 0:
        store.set("announced", '{"name": "old", "greetings": ["of a dead process"]}')
    assert len(set(start(store, 2))) == 1


def test_a_late_process_is_waited_for() -> None:
    store, names = HashStore(), list[str]()
    first = threading.Thread(target=lambda: names.append(agree_on_prefix(store, 0, 2)))
    first.start()
    first.join(0.3)
    assert first.is_alive()
    names.append(agree_on_prefix(store, 1, 2))
    first.join(5)
    assert len(set(names)) == 1 and len(names) == 2
