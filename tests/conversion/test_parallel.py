"""Several threads or processes at work on one model."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import babn
from models import CASES, Case, cases, checkpoint_activations, gap, without_dropout

pytestmark = pytest.mark.thorough


def predict(case: Case, model: nn.Module, seed: int) -> Tensor:
    return babn.predict(model, case.batch(), samples=3, seed=seed).sample_logits


@pytest.mark.parametrize("case", cases("bert", "deberta", "multihead", "sdpa"))
def test_two_threads_get_the_results_of_one(case: Case) -> None:
    model = case.converted()
    seeds = [0, 1] * 4
    alone = [predict(case, model, seed) for seed in seeds]

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: predict(case, model, seed), seeds))

    assert all(map(torch.equal, alone, together))


class Recorded(TorchFunctionMode):
    """Notes the operations that record gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor)]
        attribute = func.__name__ in ("__get__", "is_floating_point", "numel")
        if torch.is_grad_enabled() and not attribute and any(x.requires_grad for x in tensors):
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", cases("bert", "deberta", "multihead", "sdpa"))
def test_a_prediction_records_no_gradients(case: Case) -> None:
    """Threads that do can wait for each other forever: one has torch's lock, the other Python's."""
    model = case.converted()
    with Recorded() as recorded:
        predict(case, model, 0)
    assert recorded.names == []


def test_an_override_holds_in_its_own_thread() -> None:
    case = CASES["bert"]
    model = case.converted()
    with torch.no_grad():
        mean = model(**case.batch()).logits
        with babn.sampling(model, seed=0), ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(lambda: model(**case.batch()).logits).result()

    assert torch.equal(mean, elsewhere.detach())


def test_gradients_of_a_backward_in_another_thread_are_the_same() -> None:
    case = CASES["bert"]
    model = case.converted().train()
    checkpoint_activations(model)
    found = []
    for workers in (0, 1):
        model.zero_grad()
        torch.manual_seed(0)
        loss = case.loss(model)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(loss.backward).result() if workers else loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.babn.parameters()]))

    assert gap(found[:1], found[1:]) < 1e-6


def noiseless(name: str) -> nn.Module:
    return without_dropout(CASES[name].converted(rho=1e9, sigma=0.0, kl_weight=1.0)).train()


def joined_batch(name: str) -> dict[str, Tensor]:
    """Two examples of the same length, so that halves weigh the same."""
    batch = CASES[name].with_answers()
    return batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}


def gradient(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    model(**batch).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def work(rank: int, name: str, folder: str) -> None:
    """One of two processes: its half of the batch."""
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.save(half_gradient(rank, name), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def half_gradient(rank: int, name: str) -> Tensor:
    """The averaged gradient; DDP must be gone before the group, which it may wait for in vain."""
    model = nn.parallel.DistributedDataParallel(noiseless(name))
    return gradient(model, {k: x[rank : rank + 1] for k, x in joined_batch(name).items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_two_processes_have_the_gradients_of_one(name: str, tmp_path: Path) -> None:
    expected = gradient(noiseless(name), joined_batch(name))

    mp.spawn(work, (name, str(tmp_path)), nprocs=2)

    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)
    assert gap([expected], [first]) < 1e-4
