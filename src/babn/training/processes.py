"""Training in several processes: the KL of the joint batch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from babn.conversion.override import overriding
from babn.conversion.state import belief_states
from babn.validation import check_at_least


@contextmanager
def across_processes(
    model: nn.Module, weight: float = 1.0, group: dist.ProcessGroup | None = None
) -> Iterator[None]:
    r"""Averages the KL over the batches of all processes, in training passes within the block.

    DDP and FSDP average gradients over processes. With $T_r$ the sum of a layer's KL in process $r$
    of $R$ and $N_r$ the number of variables (or of examples, with `kl_reduction="sum"`) that it is
    divided by, each process then adds

    $$T_r \Big/ \frac1R \sum_q N_q$$

    to its loss, whose average over processes is the KL of the joint batch,
    $\sum_r T_r / \sum_r N_r$, however texts of different lengths are distributed. Without this
    block each process divides by its own $N_r$. Outside of a process group it has no effect.

    Args:
        model: A converted model; or a wrapper of it, such as DDP's.
        weight: Factor by which the caller multiplies this process's loss, if batches have different
            sizes; the KL is divided by it first. With 0 the process does not count.
        group: The processes; by default all.

    Example:
        with babn.across_processes(model):
            model(**batch).loss.backward()
    """
    check_at_least("weight", weight, 0.0)
    if not dist.is_initialized():
        yield
        return
    device = belief_states(model)[0].kl_weight.device

    def counted(count: Tensor | int) -> Tensor:
        total = torch.as_tensor(count, device=device).to(torch.float64) * (weight > 0)
        dist.all_reduce(total, group=group)
        return (total.clamp(min=1) / dist.get_world_size(group) * (weight or 1.0)).float()

    with overriding(model, counted=counted):
        yield
