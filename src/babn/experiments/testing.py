"""Asking a trained model: at the posterior mean, or by samples of attention."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

import babn
from babn.experiments.cache import encoded
from babn.experiments.experiment import Experiment
from babn.experiments.stage import Subject, without_answers
from babn.prediction.predict import evaluating
from babn.tasks.encoded import Batch, Encoded
from babn.tasks.task import Answers, Asked
from babn.watch import Unwatched, Watch

BATCH = 64
"""Examples that are asked together."""

MEMORY = 4.0
"""Gigabytes of a GPU that attention may take in one pass, since other runs may be beside this."""

Mode = Literal["mean", "sampled", "dropout"]
"""How a model is asked: once at the posterior mean, or by samples of attention or of dropout."""


def modes(experiment: Experiment) -> tuple[Mode, ...]:
    """The posterior mean, and samples of what the rule makes random, or else of dropout."""
    return ("mean", "dropout") if experiment.rule == "softmax" else ("mean", "sampled")


def answer(subject: Subject, part: str, mode: Mode = "mean", watch: Watch | None = None) -> Answers:
    """What a trained model answers to a part.

    Args:
        subject: Model, task and experiment.
        part: The part of the task's data.
        mode: How to ask.
        watch: Is told of every example.
    """
    watch = watch or Unwatched()
    read = subject.task.read(subject.experiment.data, part)
    data = encoded(subject.task, read, subject.tokenizer, subject.max_length, training=False)
    watch.begin(f"{part}, {mode}", len(data))
    return subject.task.answers(read, data, ask(subject, data, mode, watch))


def ask(subject: Subject, data: Encoded, mode: Mode, watch: Watch) -> Asked:
    """The model's outputs for all examples, those of similar lengths together."""
    order = data.lengths.argsort(descending=True, stable=True)
    moved = data.to(subject.device)
    for number, rows in enumerate(order.split(BATCH)):
        batch = without_answers(moved.batch(rows, subject.multiple))
        with torch.no_grad(), autocast(subject.experiment, subject.device):
            found = _outputs(subject, batch, mode, number)
        watch.step(len(rows))
        yield rows, found.float()


def _outputs(subject: Subject, batch: Batch, mode: Mode, number: int) -> Tensor:
    if mode == "mean":
        with evaluating(subject.model):
            return subject.task.output(subject.model(**batch)).unsqueeze(0)
    # Every batch has noise of its own: examples in different ones are independent.
    seed = subject.experiment.seed * 1_000_003 + number
    found = babn.predict(
        subject.model,
        batch,
        subject.experiment.samples,
        seed,
        dropout=mode == "dropout",
        memory=MEMORY if subject.device.type == "cuda" else None,
        output=subject.task.output,
    )
    return found.sample_logits


def autocast(experiment: Experiment, device: torch.device) -> AbstractContextManager[Any]:
    """The precision in which an experiment computes."""
    if experiment.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
