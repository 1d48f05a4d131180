"""Loss and gradients of a tiny BERT; run by torchrun, of the parts of a batch in two processes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_training import bert
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import babn
from babn.conversion.override import overriding
from babn_paper.models.translate import RowNoiseSource

CONFIGS = {
    "softmax": babn.SoftmaxConfig(),
    "bam": babn.BamConfig(kl_weight=0.5),
    "belief": babn.BeliefConfig.pairs(kl_weight=0.5, max_length=16),
    "belief-sum": babn.BeliefConfig.pairs(kl_weight=0.01, max_length=16, kl_reduction="sum"),
}
ROWS = 5
LENGTHS = (3, 9, 5, 9, 7)


def model_with(method: str) -> Any:
    """A converted model in training; it has no dropout."""
    return babn.convert(bert(), CONFIGS[method]).train()


def joint_batch(rows: int) -> dict[str, Tensor]:
    """Texts of different lengths."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 20, (rows, max(LENGTHS)), generator=generator)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS[:rows])[:, None]
    return {
        "input_ids": ids.masked_fill(~mask, 0),
        "attention_mask": mask.long(),
        "labels": torch.randint(2, (rows,), generator=generator),
    }


def loss_of(model: nn.Module, batch: dict[str, Tensor], rows: Iterable[int]) -> Tensor:
    """The loss of some rows, whose noise depends on the row alone."""
    rows = list(rows)
    part = {name: value[rows] for name, value in batch.items()}
    with overriding(model, noise_source=RowNoiseSource(rows)):
        return model(**part).loss


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """All gradients, whole."""
    return {
        name.removeprefix("module."): _whole(p.grad).clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def wrapped(model: Any, how: str) -> Any:
    """The model, spread over the processes."""
    if how == "ddp":
        return DistributedDataParallel(model)
    for layer in model.bert.encoder.layer:
        fully_shard(layer)
    return fully_shard(model)


def in_this_process(method: str, how: str) -> dict[str, Tensor]:
    """Loss and gradients, averaged over processes."""
    mine = list(range(ROWS))[dist.get_rank() :: dist.get_world_size()]
    weight = dist.get_world_size() * len(mine) / ROWS
    model = wrapped(model_with(method), how)
    assert how == "ddp" or all(hasattr(p, "full_tensor") for p in model.parameters())
    with babn.across_processes(model, weight):
        loss = loss_of(model, joint_batch(ROWS), mine) * weight
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return {"loss": mean / dist.get_world_size(), **gradients_of(model)}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    for method in CONFIGS:
        for how in ("ddp", "fsdp2"):
            found = in_this_process(method, how)
            if dist.get_rank() == 0:
                torch.save(found, folder / f"{method}-{how}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
