"""Run by torchrun: every process trains with its part of each batch, and the first one reports."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_training import (
    BeliefTrainerInOrder,
    bert,
    gpt2,
    images,
    one_step_of_descent,
    stories,
    texts,
    training_logs,
    vit,
    without_noise,
)
from torch import Tensor

import babn

SETTINGS = {"as-they-come": {}, "no-search": {"ddp_find_unused_parameters": False}}
TASKS = {
    "bert": (bert, texts, "mean"),
    "vit": (vit, images, "mean"),
    "gpt2": (gpt2, stories, "mean"),
    "gpt2-sum": (gpt2, stories, "sum"),
}


def train(
    folder: Path, task: str, batch: int, **settings: Any
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Weights and logs after two steps of gradient descent."""
    build, examples, reduction = TASKS[task]
    model = babn.convert(build(), without_noise(kl_weight=0.5, kl_reduction=reduction))
    descent = {"max_steps": 2, "per_device_train_batch_size": batch, **settings}
    trainer = BeliefTrainerInOrder(
        model, one_step_of_descent(folder, **descent), train_dataset=examples(16)
    )
    trainer.train()
    return model.state_dict(), training_logs(trainer)


def main(folder: Path, settings: str) -> None:
    for task in TASKS:
        weights, logs = train(folder, task, batch=4, **SETTINGS[settings])
        if dist.get_rank() == 0:
            torch.save(weights, folder / f"{task}.pt")
            (folder / f"{task}.json").write_text(json.dumps(logs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
