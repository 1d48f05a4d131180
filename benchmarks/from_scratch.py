"""The training loop of the comparisons of methods, and what their results were measured with."""

import json
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import babn
from babn.conversion.state import converted_roots

Batch = Mapping[str, Tensor]


def train(
    model: nn.Module,
    epoch: Callable[[], Iterable[Batch]],
    total: int,
    lr: float,
    label_smoothing: float = 0.0,
    weight_decay: float = 0.01,
    kl_weight: float | None = None,
) -> None:
    """Trains with AdamW, linear warm-up and decay, and the KL annealed where there is one.

    Args:
        model: The model, whose output has a loss; in bfloat16 on a GPU.
        epoch: Yields the batches of one epoch, in a new order each time.
        total: Number of steps.
        lr: The highest learning rate, after a tenth of the steps.
        label_smoothing: Share of label smoothing of a classifier.
        weight_decay: Of all parameters.
        kl_weight: Weight of the KL after annealing; by default that of the model's configuration.
    """
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, weight_decay=weight_decay, fused=on_gpu
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * total), 1 - step / total)
    )
    annealing = babn.KLAnnealing(weight=kl_weight) if converted_roots(model) else None
    model.train()
    for step, batch in enumerate(_steps(epoch, total)):
        if annealing is not None:
            annealing.apply(model, step, total)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            output = model(**batch)
        loss = output.loss
        if label_smoothing:
            logits = output.logits.float()
            loss = F.cross_entropy(logits, batch["labels"], label_smoothing=label_smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()


def _steps(epoch: Callable[[], Iterable[Batch]], total: int) -> Iterable[Batch]:
    """Batches of as many epochs as `total` steps need."""
    done = 0
    while done < total:
        for batch in epoch():
            if done == total:
                return
            yield batch
            done += 1


def environment(device: str) -> dict[str, Any]:
    """Versions and machine."""
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"versions": versions, "machine": machine}


def write_about(folder: Path, task: str, model: str, settings: dict[str, Any], device: str) -> None:
    """Writes what the results of a folder were measured with."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"task": task, "model": model, "settings": settings, **environment(device)}
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
