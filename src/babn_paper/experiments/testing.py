"""Asking a trained model: at the posterior mean, or by samples of attention."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from babn.progress import NoProgress, Progress
from babn_paper.experiments.cache import encoded
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.processes import Processes, processes
from babn_paper.experiments.stage import Subject
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.predictor import Mode, Predictor
from babn_paper.tasks.task import Outputs, Part, Predictions, without_labels


def modes(subject: Subject) -> tuple[Mode, ...]:
    """The posterior mean, and samples of what the rule makes random, of dropout, or of both."""
    experiment = subject.experiment
    found: tuple[Mode, ...] = ("mean",) if experiment.rule == "softmax" else ("mean", "sampled")
    wanted = experiment.rule == "softmax" or experiment.test_dropout
    return (*found, "dropout") if wanted and has_dropout(subject.model) else found


def has_dropout(model: nn.Module) -> bool:
    """Whether dropout would change anything; some layers hold its rate themselves, as LSTMs do."""
    rates = (getattr(each, name, 0) for each in model.modules() for name in ("p", "dropout"))
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def answer(
    subject: Subject, part: str, mode: Mode = "mean", progress: Progress | None = None
) -> Predictions:
    """What a trained model answers to a part.

    Args:
        subject: Model, task and experiment.
        part: The part of the task's data.
        mode: How to ask.
        progress: Is told of every example.
    """
    return Questions.of(subject, part).answered(subject, mode, progress or NoProgress())


@dataclass(frozen=True)
class Questions:
    """A part of the test data, read and encoded.

    Attributes:
        part: The examples.
        data: The same as tensors.
    """

    part: Part[Any]
    data: Encoded

    @classmethod
    def of(cls, subject: Subject, name: str) -> "Questions":
        """Reads and encodes a part."""
        part = subject.task.read(subject.experiment.data, name)
        data = encoded(subject.task, part, subject.tokenizer, subject.max_length, training=False)
        return cls(part, data)

    def answered(self, subject: Subject, mode: Mode, progress: Progress) -> Predictions:
        """What a trained model answers."""
        progress.begin(f"{self.part.name}, {mode}", len(self.data))
        return subject.task.predictions(
            self.part, self.data, ask(subject, self.data, mode, progress)
        )


def ask(subject: Subject, data: Encoded, mode: Mode, progress: Progress) -> Outputs:
    """The model's outputs for all examples, those of similar lengths together.

    Several processes take turns over the batches, whose noise depends on their number alone.
    """
    own = processes()
    found = _ask(subject, data, mode, progress, own)
    if own.count > 1:
        found = iter(sorted(own.gathered([_on_cpu(each) for each in found]), key=itemgetter(0)))
    for _, rows, answers in found:
        yield rows, answers


def _ask(
    subject: Subject, data: Encoded, mode: Mode, progress: Progress, own: Processes
) -> Iterator[tuple[int, Tensor, Any]]:
    """Number, places and outputs of the batches that fall to this process."""
    order = data.lengths.argsort(descending=True, stable=True)
    moved, predictor = data.to(subject.device), predictor_of(subject, mode)
    batches = order.split(subject.task.eval_batch_size)
    for number in range(own.rank, len(batches), own.count):
        rows = batches[number]
        batch = without_labels(moved.batch(rows, subject.multiple))
        with torch.no_grad(), autocast(subject.experiment, subject.device):
            found = subject.task.predict(predictor, batch, rows, number)
        progress.step(sum(map(len, batches[number : number + own.count])))
        yield number, rows, found.float() if isinstance(found, Tensor) else found


def _on_cpu(found: Any) -> Any:
    return pytree.tree_map_only(Tensor, Tensor.cpu, found)


def predictor_of(subject: Subject, mode: Mode) -> Predictor:
    """The predictor of a subject's model."""
    return Predictor(
        model=subject.model,
        tokenizer=subject.tokenizer,
        mode=mode,
        samples=subject.experiment.samples,
        seed=subject.experiment.seed,
        max_length=subject.max_length,
    )


def autocast(experiment: Experiment, device: torch.device) -> AbstractContextManager[Any]:
    """The precision in which an experiment computes."""
    if experiment.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
