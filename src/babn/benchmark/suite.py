"""All measurements of the benchmark, one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

import babn
from babn.attention.rule import RuleConfig
from babn.benchmark.processes import measured
from babn.benchmark.timing import Cost, Step, measure_in_turns
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
    "BABN heads": babn.BeliefConfig.pairs(upward="heads"),
    "BABN keys": babn.BeliefConfig.pairs(),
    "BABN keys, reference": babn.BeliefConfig.pairs(kernel="reference"),
}
ROUTES: dict[str, RuleConfig | None] = {
    "softmax": None,
    "BABN heads": babn.BeliefConfig.pairs(upward="heads"),
    "BABN heads, shared by 3": babn.BeliefConfig.pairs(upward="heads", upward_share=3),
    "BABN keys": babn.BeliefConfig.pairs(),
    "BABN keys, shared by 2": babn.BeliefConfig.pairs(upward_share=2),
    "BABN keys, rank 16": babn.BeliefConfig.pairs(upward_rank=16),
}
"""Upward paths that cost less than the default."""

ASKED: dict[str, RuleConfig | None] = {
    "softmax": None,
    "BABN sigma=0": babn.BeliefConfig.pairs(sigma=0.0),
    "BABN sigma=1e-6": babn.BeliefConfig.pairs(),
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
        sizes: Sizes of model and batch, each with the form in which models run.
        repeats: Measured steps.
        reference_up_to: The longest text for which the reference is measured beside the kernels.
        routes: Whether to measure training with cheaper upward paths, and nothing else.
    """

    sizes: tuple[tuple[Size, Form], ...]
    repeats: int
    reference_up_to: int = 512
    routes: bool = False


GPU = Plan(
    ((Size(128, 32), "graphs"), (Size(512, 32), "graphs"), (Size(2048, 4), "graphs")),
    repeats=50,
)
"""ALBERT-base in the sizes that the documents quote, compiled, and steps recorded as CUDA
graphs, since launches by the CPU would bound them otherwise."""

CPU = Plan(((Size(128, 4, layers=4), "eager"), (Size(256, 2, layers=4), "eager")), repeats=3)
"""A third of its layers, for two cores and a few minutes."""


@dataclass(frozen=True)
class Contestant:
    """Something to measure: a rule, the form it runs in, and what makes its step."""

    task: Task
    name: str
    form: Form
    size: Size
    rule: RuleConfig | None
    make_step: Callable[[Any, dict[str, Tensor]], Step]

    def step(self, device: torch.device) -> Step:
        """Its step on a new model."""
        model = make_model(self.size, self.rule, device)
        return self.make_step(model, make_batch(self.size, device))

    def row(self, cost: Cost | None) -> Row:
        """Its measurement."""
        return Row(self.task, self.name, self.form, self.size, cost)

    @property
    def by_reference(self) -> bool:
        """Whether it does without the kernels; it takes most of the memory then."""
        return self.rule is not None and self.rule.kernel == "reference"


def run(plan: Plan, device: torch.device, report: Callable[[str], None]) -> Iterator[Row]:
    """Measures everything in the plan; says what it does."""
    if device.type == "cpu":
        yield from _in_turns(plan, report)
    else:
        yield from _in_processes(plan, device, report)


def _in_turns(plan: Plan, report: Callable[[str], None]) -> Iterator[Row]:
    """What is compared takes its steps in turns, since other work slows a CPU down."""
    for group in _groups(plan):
        entered = [c for c in group if not c.by_reference]
        report(f"{entered[0].task}, {entered[0].size.length} tokens")
        steps = [c.step(torch.device("cpu")) for c in entered]
        costs = measure_in_turns(steps, plan.repeats)
        yield from (c.row(cost) for c, cost in zip(entered, costs, strict=True))


def _in_processes(plan: Plan, device: torch.device, report: Callable[[str], None]) -> Iterator[Row]:
    """All that uses the kernels waits in memory together; what does without comes alone.

    So does what finds no room beside the others. Cheaper upward paths come a length at a time, for
    together they would find none.
    """
    groups = _groups(plan)
    together = groups if plan.routes else [[c for group in groups for c in group]]
    waves = [[c for c in wave if not c.by_reference] for wave in together]
    waves += [[c] for group in groups for c in group if c.by_reference]
    while waves:
        wave = waves.pop(0)
        costs = measured([c.step for c in wave], device, plan.repeats, report)
        for c, cost in zip(wave, costs, strict=True):
            if cost is None and len(wave) > 1:
                waves.append([c])
                continue
            report(f"measured: {c.task}, {c.size.length} tokens, {c.name}")
            yield c.row(cost)


def _groups(plan: Plan) -> list[list[Contestant]]:
    """What is compared with each other."""
    if plan.routes:
        return [_training(plan, size, form) for size, form in plan.sizes]
    found = [_sampling(replace(plan.sizes[0][0], batch=1))]
    for size, form in plan.sizes:
        found.append(_training(plan, size, form))
        found.append(_asking(size, form))
    return found


def _training(plan: Plan, size: Size, form: Form) -> list[Contestant]:
    found = []
    for name, rule in (ROUTES if plan.routes else TRAINED).items():
        by_reference = rule is not None and rule.kernel == "reference"
        if by_reference and size.length > plan.reference_up_to:
            continue
        taken: Form = "eager" if by_reference else form
        make = partial(training_step, form=taken)
        found.append(Contestant("train", name, taken, size, rule, make))
    return found


def _asking(size: Size, form: Form) -> list[Contestant]:
    return [
        Contestant("mean", name, form, size, rule, partial(inference, form=form))
        for name, rule in ASKED.items()
    ]


def _sampling(size: Size) -> list[Contestant]:
    forms: tuple[Form, ...] = ("loop", "batched")
    rule = babn.BeliefConfig.pairs()
    return [
        Contestant(
            "sample", "BABN keys", form, size, rule, partial(sampled, samples=SAMPLES, form=form)
        )
        for form in forms
    ]
