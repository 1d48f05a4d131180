"""All measurements of the benchmark, one after the other."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

import babn
from babn.attention.rule import RuleConfig
from babn.benchmark.timing import Cost, Step, free, measure, measure_in_turns
from babn.benchmark.workload import (
    Form,
    Size,
    inference,
    make_batch,
    make_model,
    sampled,
    training_step,
)

Task = Literal["train", "mean", "sample"]

SAMPLES = 20

TRAINED: dict[str, RuleConfig | None] = {
    "softmax": None,
    "BAM": babn.BamConfig(),
    "BABN heads": babn.BeliefConfig(upward="heads"),
    "BABN keys": babn.BeliefConfig(),
    "BABN keys, reference": babn.BeliefConfig(kernel="reference"),
}
ASKED: dict[str, RuleConfig | None] = {
    "softmax": None,
    "BABN sigma=0": babn.BeliefConfig(sigma=0.0),
    "BABN sigma=1e-6": babn.BeliefConfig(),
}


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        task: A training step, a pass at the posterior mean, or samples.
        name: The rule.
        form: How it was run.
        size: Sizes of model and batch.
        cost: What it took; `None` if the memory was too small.
    """

    task: Task
    name: str
    form: Form
    size: Size
    cost: Cost | None


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        sizes: Sizes of model and batch.
        forms: How models are run.
        repeats: Measured steps.
        reference_up_to: The longest text for which the reference is measured beside the kernels.
    """

    sizes: tuple[Size, ...]
    forms: tuple[Form, ...]
    repeats: int
    reference_up_to: int = 512


GPU = Plan((Size(128, 32), Size(512, 32), Size(2048, 4)), ("eager", "compiled"), repeats=20)
"""ALBERT-base in the sizes that the documents quote."""

CPU = Plan((Size(128, 4, layers=4), Size(256, 2, layers=4)), ("eager",), repeats=3)
"""A third of its layers, for two cores and a few minutes."""


@dataclass(frozen=True)
class Contestant:
    """Something to measure: a rule, the form it runs in, and what makes its step."""

    task: Task
    name: str
    form: Form
    rule: RuleConfig | None
    make_step: Callable[[Any, dict[str, Tensor]], Step]

    def step(self, size: Size, device: torch.device) -> Step:
        """Its step on a new model."""
        return self.make_step(make_model(size, self.rule, device), make_batch(size, device))


def run(plan: Plan, device: torch.device, report: Callable[[str], None]) -> Iterator[Row]:
    """Measures everything in the plan; says before each measurement what it is."""
    for size in plan.sizes:
        yield from _measured(plan, size, device, _training(plan, size, device), report)
        yield from _measured(plan, size, device, _asking(plan), report)
    single = replace(plan.sizes[0], batch=1)
    yield from _measured(plan, single, device, _sampling(), report)


def _training(plan: Plan, size: Size, device: torch.device) -> Iterator[Contestant]:
    for name, rule in TRAINED.items():
        by_reference = rule is not None and rule.kernel == "reference"
        if by_reference and (device.type == "cpu" or size.length > plan.reference_up_to):
            continue
        for form in plan.forms[:1] if by_reference else plan.forms:
            yield Contestant("train", name, form, rule, partial(training_step, form=form))


def _asking(plan: Plan) -> Iterator[Contestant]:
    for name, rule in ASKED.items():
        for form in plan.forms:
            yield Contestant("mean", name, form, rule, partial(inference, form=form))


def _sampling() -> Iterator[Contestant]:
    forms: tuple[Form, ...] = ("loop", "batched")
    for form in forms:
        make = partial(sampled, samples=SAMPLES, form=form)
        yield Contestant("sample", "BABN keys", form, babn.BeliefConfig(), make)


def _measured(
    plan: Plan,
    size: Size,
    device: torch.device,
    contestants: Iterable[Contestant],
    report: Callable[[str], None],
) -> Iterator[Row]:
    """On a GPU one after the other, since memory counts; on a CPU in turns, for fair times."""
    entered = list(contestants)
    if device.type == "cpu":
        report(f"{entered[0].task}, {size.length} tokens")
        costs = measure_in_turns([c.step(size, device) for c in entered], plan.repeats)
        yield from (
            Row(c.task, c.name, c.form, size, cost) for c, cost in zip(entered, costs, strict=True)
        )
        return
    for c in entered:
        report(f"{c.task}, {size.length} tokens, {c.name}, {c.form}")
        yield Row(c.task, c.name, c.form, size, _cost(c, size, device, plan.repeats))


def _cost(contestant: Contestant, size: Size, device: torch.device, repeats: int) -> Cost | None:
    free(device)
    torch.compiler.reset()
    try:
        return measure(contestant.step(size, device), device, repeats)
    except torch.OutOfMemoryError:
        return None
