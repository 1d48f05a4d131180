"""Model, data and optimizer of an experiment, and the batches of every training step."""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from babn.conversion.state import converted_roots, own_state
from babn.devices import default_device
from babn.elbo import KLAnnealing
from babn.errors import BabnWarning, ConfigError
from babn_paper.experiments.attention import is_per_example, load_trained, with_attention
from babn_paper.experiments.cache import encoded
from babn_paper.experiments.distributed import SINGLE, World
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.models import load_model, load_tokenizer
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.encoded import Batch, Encoded
from babn_paper.tasks.task import Part, Task, Tokenizer


def make_optimizer(model: nn.Module, experiment: Experiment) -> Optimizer:
    """AdamW with a separate rate for added parameters and no weight decay of vectors.

    Vectors are biases and scales. Added parameters are those that conversion adds.
    """
    states = [state for module in model.modules() if (state := own_state(module)) is not None]
    belief = {id(p) for state in states for p in state.parameters()}
    rates = {False: experiment.learning_rate, True: experiment.belief_rate}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            key = id(parameter) in belief, parameter.ndim > 1
            groups.setdefault(key, []).append(parameter)
    settings = [
        {
            "params": parameters,
            "peak": rates[added] or experiment.learning_rate,
            "weight_decay": experiment.weight_decay * matrix,
        }
        for (added, matrix), parameters in groups.items()
    ]
    return AdamW(settings, lr=0.0, betas=(0.9, float(experiment.beta2)), fused=True)


def set_rates(
    optimizer: Optimizer, step: int, steps: int, warmup: int, schedule: str = "linear"
) -> float:
    """Sets the learning rate of every group for a step; returns it as a fraction of the peak."""
    mcan = schedule == "mcan"
    share = mcan_schedule(step, steps) if mcan else linear_schedule(step, steps, warmup)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    return share


def linear_schedule(step: int, steps: int, warmup: int) -> float:
    """Linear warmup and linear decay of the learning rate, as a fraction of the peak."""
    warmup = max(1, min(warmup, steps))
    return min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))


def mcan_schedule(step: int, steps: int) -> float:
    """MCAN's learning rate schedule over 13 epochs, as a fraction of the peak.

    The rate is 1/4, 2/4 and 3/4 of the peak in the first three epochs and the peak from the fourth
    on. After the tenth epoch, and after every second one that follows, it is divided by 5.
    """
    epoch = 1 + 13 * step // steps
    falls = max(0, -(-(epoch - 10) // 2))
    return float(min(1.0, epoch / 4) * 0.2**falls)


BUCKET = 8
"""Number of batches whose examples are sorted by length together, to reduce padding."""


def bucketed(
    lengths: Sequence[int], size: int, generator: torch.Generator, buckets: int = BUCKET
) -> list[list[int]]:
    """Random batches of indices with similar lengths in each batch."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), size * buckets):
        bucket = order[start : start + size * buckets]
        if buckets > 1:
            bucket.sort(key=lengths.__getitem__)
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]


def by_tokens(lengths: Sequence[int], tokens: int, generator: torch.Generator) -> list[list[int]]:
    """Random batches of indices with at most `tokens` tokens, padding included, or one example.

    The order of examples with equal length differs between epochs; the batch sizes do not, so every
    epoch has equally many batches.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    order.sort(key=lengths.__getitem__)
    batches: list[list[int]] = [[]]
    for index in order:
        if batches[-1] and (len(batches[-1]) + 1) * lengths[index] > tokens:
            batches.append([])
        batches[-1].append(index)
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]


DEV = "dev"
"""The part on which an epoch is selected."""


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A model together with its task and tokenizer.

    Attributes:
        experiment: The experiment that defines it.
        task: The task.
        model: The converted model.
        tokenizer: Its tokenizer.
        max_length: Number of tokens to which texts are truncated.
    """

    experiment: Experiment
    task: Task[Any]
    model: nn.Module
    tokenizer: Tokenizer
    max_length: int

    def __post_init__(self) -> None:
        if converted_roots(self.model):
            self.task.set_units(self.model)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def multiple(self) -> int:
        """Batches are padded to multiples of this length; GPU kernels use tiles of 16."""
        return self.task.multiple or (16 if self.device.type == "cuda" else 8)


@dataclass(frozen=True)
class MicroBatch:
    """The examples of a micro-batch that one process trains on.

    Attributes:
        share: Fraction of the step's examples that are in the micro-batch, over all processes.
        weight: Factor of this process's loss, chosen so that the mean over processes is the loss of
            the micro-batch.
        batch: Arguments of the model.
    """

    share: float
    weight: float
    batch: Batch


@dataclass(frozen=True, kw_only=True)
class TrainingState(TaskModel):
    """A model with its training data and optimizer.

    Attributes:
        train: The training examples.
        data: The encoded training examples, on the model's device.
        optimizer: The optimizer of the model's parameters.
    """

    train: Part[Any]
    data: Encoded
    optimizer: Optimizer

    @cached_property
    def annealing(self) -> KLAnnealing:
        """The schedule of the KL weight."""
        return self.experiment.annealing()

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch."""
        if self.experiment.batch_tokens:
            return len(self._order(0))
        return math.ceil(len(self.data) / self.experiment.batch_size)

    @cached_property
    def words_per_step(self) -> float | None:
        """Mean number of target tokens in a step, for models that generate text."""
        labels = self.data.ragged.get("labels")
        return None if labels is None else int(labels.lengths.sum()) / self.steps_per_epoch

    @property
    def steps(self) -> int:
        """Optimizer steps in total."""
        by_epochs = max(1, round(self.experiment.epochs * self.steps_per_epoch))
        return self.experiment.steps or by_epochs

    @property
    def warmup(self) -> int:
        """Steps of learning rate warmup."""
        return self.experiment.warmup_steps or round(self.experiment.warmup * self.steps)

    def micro_batches(self, step: int, world: World = SINGLE) -> Iterator[MicroBatch]:
        """The micro-batches of a step: of each, the examples of this process.

        They depend on the experiment and the step only.
        """
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = torch.tensor(self._order(epoch)[place])
        size = math.ceil(len(rows) / self.experiment.accumulation)
        for part in rows.split(size):
            mine = part[world.rank :: world.size]
            weight = world.size * self._terms(mine) / self._terms(part)
            least = self.max_length if self.experiment.full_length else 0
            # A process without examples takes one with weight 0, since all ranks must call DDP.
            batch = self.data.batch(mine if len(mine) else part[:1], self.multiple, least)
            yield MicroBatch(len(part) / len(rows), weight, batch)

    def _terms(self, rows: Tensor) -> int:
        """The number of terms that the loss averages over: examples, or target tokens."""
        labels = None if is_per_example(self.model) else self.data.ragged.get("labels")
        return len(rows) if labels is None else int(labels.lengths[rows.cpu()].sum())

    def _order(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch as example indices; the order of the latest epoch is cached."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._shuffled(epoch)
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, list[list[int]]]:
        return {}

    def _shuffled(self, epoch: int) -> list[list[int]]:
        seed = self.experiment.seed * 1_000_003 + epoch
        generator = torch.Generator().manual_seed(seed)
        lengths = self.data.lengths.tolist()
        if self.experiment.batch_tokens:
            return by_tokens(lengths, self.experiment.batch_tokens, generator)
        return bucketed(lengths, self.experiment.batch_size, generator, self.experiment.buckets)


def prepare_training(experiment: Experiment) -> TrainingState:
    """Reads and encodes the training data, loads and converts the model."""
    task = find_task(experiment.task, experiment.options)
    task.check_ready()
    train = task.read(experiment.data, "train")
    max_length = experiment.max_length or task.max_length
    base, tokenizer = load_model(experiment, task, train, max_length)
    device = default_device()
    if experiment.precision == "bfloat16" and device.type == "cpu" and not has_bfloat16():
        warnings.warn(
            "precision='bfloat16' can be hundreds of times slower than float32 on this CPU, which "
            "emulates it. Use a GPU, or --set precision=float32.",
            BabnWarning,
            stacklevel=2,
        )
    data = encoded(task, train, tokenizer, max_length, training=True).to(device)
    labels = data.fixed.get("labels")
    if experiment.label_smoothing and (labels is None or labels.is_floating_point()):
        raise ConfigError(
            f"label_smoothing={experiment.label_smoothing} does not apply to {task.title}, which "
            "is not a classification task. Leave it at 0."
        )
    has_own_dev = DEV in task.test_parts[1:] and task.has(experiment.data, DEV)
    if experiment.select_epoch and not has_own_dev:
        raise ConfigError(
            f"select_epoch=true is not supported with {task.title}, which has no development data "
            "besides its test data. Set it to false."
        )
    longest = max([max_length, *(lookup.keys for lookup in data.lookups)])
    model = with_attention(base.to(device), experiment, task.dry_run(data), longest)
    return TrainingState(
        experiment=experiment,
        task=task,
        model=model,
        tokenizer=tokenizer,
        max_length=max_length,
        train=train,
        data=data,
        optimizer=make_optimizer(model, experiment),
    )


def load_task_model(experiment: Experiment, folder: Path) -> TaskModel:
    """Loads a trained model from the folder it was saved to."""
    task = find_task(experiment.task, experiment.options)
    task.check_ready()
    return TaskModel(
        experiment=experiment,
        task=task,
        model=load_trained(folder).to(default_device()),
        tokenizer=load_tokenizer(str(folder)),
        max_length=experiment.max_length or task.max_length,
    )


def has_bfloat16() -> bool:
    """Whether this CPU supports bfloat16; true if torch cannot tell."""
    known = torch.backends.mkldnn.is_available()
    return not known or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
