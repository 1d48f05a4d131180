"""What training needs, made from an experiment: data, model, optimizer and the number of steps."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from babn.elbo import KLAnnealing
from babn.errors import BabnWarning, ConfigError
from babn_paper.batching import bucketed, by_tokens
from babn_paper.experiments.attention import load_trained, with_attention
from babn_paper.experiments.cache import encoded
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.models import load_model, load_tokenizer
from babn_paper.experiments.optimizer import make_optimizer
from babn_paper.experiments.processes import ALONE, Processes
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.encoded import Batch, Encoded
from babn_paper.tasks.task import Part, Task, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that can be asked.

    Attributes:
        experiment: What it comes from.
        task: Its task.
        model: The converted model.
        tokenizer: The tokenizer that goes with it.
        max_length: Tokens at which texts are cut.
    """

    experiment: Experiment
    task: Task[Any]
    model: nn.Module
    tokenizer: Tokenizer
    max_length: int

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def multiple(self) -> int:
        """Lengths of batches are multiples of this; kernels of a GPU are made for 16."""
        return self.task.multiple or (16 if self.device.type == "cuda" else 8)


@dataclass(frozen=True)
class Portion:
    """What falls to a process of a part of a step's batch.

    Attributes:
        share: The part's share of the step's examples.
        weight: What the loss of this batch is multiplied by, so that the mean over processes is the
            loss of the whole part.
        batch: The model's arguments.
    """

    share: float
    weight: float
    batch: Batch


@dataclass(frozen=True, kw_only=True)
class Stage(Subject):
    """A model that can be trained.

    Attributes:
        train: The training examples.
        data: The same as tensors, on the model's device.
        optimizer: Moves the model's parameters.
    """

    train: Part[Any]
    data: Encoded
    optimizer: Optimizer

    @cached_property
    def annealing(self) -> KLAnnealing:
        """The schedule of the divergence's weight."""
        return self.experiment.annealing()

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps in one pass over the data."""
        if self.experiment.batch_tokens:
            return len(self._order(0))
        return math.ceil(len(self.data) / self.experiment.batch_size)

    @cached_property
    def words_per_step(self) -> float | None:
        """Words, or pieces of them, that a model of texts learns to write in a step."""
        labels = self.data.ragged.get("labels")
        return None if labels is None else int(labels.lengths.sum()) / self.steps_per_epoch

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        by_epochs = max(1, round(self.experiment.epochs * self.steps_per_epoch))
        return self.experiment.steps or by_epochs

    @property
    def warmup(self) -> int:
        """Steps over which learning rates grow."""
        return self.experiment.warmup_steps or round(self.experiment.warmup * self.steps)

    def batches(self, step: int, own: Processes = ALONE) -> Iterator["Portion"]:
        """The parts of a step's batch, of each what falls to this process.

        The parts depend on nothing but the experiment and the step.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = torch.tensor(self._order(epoch)[place])
        size = math.ceil(len(rows) / self.experiment.accumulation)
        for part in rows.split(size):
            mine = part[own.rank :: own.count]
            weight = own.count * self._terms(mine) / self._terms(part)
            # Who has nothing to do takes part all the same, since others wait; it counts for zero.
            least = self.max_length if self.experiment.full_length else 0
            batch = self.data.batch(mine if len(mine) else part[:1], self.multiple, least)
            yield Portion(len(part) / len(rows), weight, batch)

    def _terms(self, rows: Tensor) -> int:
        """How many terms the loss of some examples is the mean of: examples, or words."""
        labels = self.data.ragged.get("labels")
        return len(rows) if labels is None else int(labels.lengths[rows.cpu()].sum())

    def _order(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, as numbers of examples; those of the last epoch stay."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._drawn_order(epoch)
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, list[list[int]]]:
        return {}

    def _drawn_order(self, epoch: int) -> list[list[int]]:
        seed = self.experiment.seed * 1_000_003 + epoch
        generator = torch.Generator().manual_seed(seed)
        lengths = self.data.lengths.tolist()
        if self.experiment.batch_tokens:
            return by_tokens(lengths, self.experiment.batch_tokens, generator)
        return bucketed(lengths, self.experiment.batch_size, generator, self.experiment.buckets)


def set_up(experiment: Experiment) -> Stage:
    """Reads and encodes the data, loads and converts the model."""
    task = find_task(experiment.task, experiment.options)
    task.check_ready()
    train = task.read(experiment.data, "train")
    max_length = experiment.max_length or task.max_length
    base, tokenizer = load_model(experiment, task, train, max_length)
    device = default_device()
    if experiment.precision == "bfloat16" and device.type == "cpu" and not has_bfloat16():
        warnings.warn(
            "precision='bfloat16' may take hundreds of times as long as float32 on this processor"
            ", which has to imitate it. Use a GPU, or --set precision=float32.",
            BabnWarning,
            stacklevel=2,
        )
    data = encoded(task, train, tokenizer, max_length, training=True).to(device)
    labels = data.fixed.get("labels")
    if experiment.label_smoothing and (labels is None or labels.is_floating_point()):
        raise ConfigError(
            f"label_smoothing={experiment.label_smoothing} has no meaning for {task.title}, whose "
            "answers are not classes. Leave it at 0."
        )
    longest = max([max_length, *(lookup.keys for lookup in data.lookups)])
    model = with_attention(base.to(device), experiment, task.dry_run(data), longest)
    return Stage(
        experiment=experiment,
        task=task,
        model=model,
        tokenizer=tokenizer,
        max_length=max_length,
        train=train,
        data=data,
        optimizer=make_optimizer(model, experiment),
    )


def load_subject(experiment: Experiment, folder: Path) -> Subject:
    """A trained model from the folder it was saved to."""
    task = find_task(experiment.task, experiment.options)
    task.check_ready()
    return Subject(
        experiment=experiment,
        task=task,
        model=load_trained(folder).to(default_device()),
        tokenizer=load_tokenizer(str(folder)),
        max_length=experiment.max_length or task.max_length,
    )


def has_bfloat16() -> bool:
    """Whether this processor multiplies numbers in bfloat16, as far as torch can tell."""
    known = torch.backends.mkldnn.is_available()
    return not known or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def default_device() -> torch.device:
    """The GPU if there is one; of several, this process's."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
