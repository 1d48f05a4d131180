"""Two processes together give the numbers of one."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from streaming_cases import CASES, EXAMPLES, Case

pytestmark = pytest.mark.thorough


def share(case: Case, split: int, rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of one process: up to the split in two parts, or all that follow in one."""
    places = [(0, 5), (5, split)] if rank == 0 else [(split, EXAMPLES)]
    return [case.part(start, stop) for start, stop in places if start < stop]


def work(rank: int, split: int, folder: str) -> None:
    """One of two processes: every metric on its share of the examples."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = {}
    for name, case in CASES.items():
        metric = case.make().to("cpu")
        for data in share(case, split, rank):
            metric.update(*data)
        found[name] = metric.compute().item()
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("split", [EXAMPLES // 3, EXAMPLES], ids=["uneven", "one without data"])
def test_two_processes_have_the_numbers_of_one(split: int, tmp_path: Path) -> None:
    mp.spawn(work, (split, str(tmp_path)), nprocs=2)

    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        expected = {name: case.expected() for name, case in CASES.items()}
        assert found == pytest.approx(expected, rel=1e-12)
