"""Fine-tuning on the intents: one plain loop, the same for every rule."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import babn
from babn.conversion.state import belief_states
from babn.demo.batches import Batch
from babn.training.annealing import rise_and_fall


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, whatever its rule.

    Attributes:
        epochs: Passes over the training texts.
        encoder_rate: Highest learning rate of the encoder.
        classifier_rate: Of the classifier on top of it.
        belief_rate: Of the parameters that conversion adds.
        batch_size: Texts in one step.
        warmup: Share of the steps over which rates grow, before they fall linearly to zero.
        weight_decay: AdamW's.
        clip: Largest norm of the gradient.
    """

    epochs: int
    encoder_rate: float
    classifier_rate: float
    belief_rate: float
    batch_size: int = 16
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0


@dataclass(frozen=True)
class Step:
    """How far training has come."""

    number: int
    total: int
    loss: float
    kl: float


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    seed: int,
    report: Callable[[Step], None],
) -> list[float]:
    """Trains a converted model in place, and returns the seconds that each step took."""
    torch.manual_seed(seed)
    model.train()
    annealing = babn.KLAnnealing(schedule="linear")
    optimizer, schedule = make_optimizer(model, recipe, len(batches))
    seconds = []
    for number, batch in enumerate(batches):
        start = time.perf_counter()
        annealing.apply(model, number, len(batches))
        loss = model(**batch).loss  # the divergence is in it already
        update(model, loss, optimizer, schedule, recipe.clip)
        kl = babn.belief_kl(model).item()
        seconds.append(time.perf_counter() - start)
        report(Step(number + 1, len(batches), loss.item(), kl))
    return seconds


def update(
    model: nn.Module, loss: Tensor, optimizer: Optimizer, schedule: LRScheduler, clip: float
) -> None:
    """One step down the gradient of the loss."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    schedule.step()


def make_optimizer(model: nn.Module, recipe: Recipe, steps: int) -> tuple[Optimizer, LRScheduler]:
    """AdamW with a rate for each part of the model, warmup and linear decay."""
    parts = split_parameters(model)
    groups = [
        {"params": parts["encoder"], "lr": recipe.encoder_rate},
        {"params": parts["classifier"], "lr": recipe.classifier_rate},
        {"params": parts["belief"], "lr": recipe.belief_rate},
    ]
    optimizer = AdamW(groups, weight_decay=recipe.weight_decay, fused=True)
    warmup = round(recipe.warmup * steps)

    return optimizer, LambdaLR(optimizer, lambda step: rise_and_fall(step, steps, warmup))


def split_parameters(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters of the encoder, of the classifier, and those that conversion added."""
    belief = {id(p) for state in belief_states(model) for p in state.parameters()}
    parts: dict[str, list[nn.Parameter]] = {"encoder": [], "classifier": [], "belief": []}
    for name, parameter in model.named_parameters():
        own = "classifier" if name.startswith("classifier.") else "encoder"
        parts["belief" if id(parameter) in belief else own].append(parameter)
    return parts
