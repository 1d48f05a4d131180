"""The measurements of the benchmark."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

import babn
from babn.attention.rule import RuleConfig
from babn.benchmark.gpu_processes import measured
from babn.benchmark.steps import (
    Form,
    Size,
    inference,
    make_batch,
    make_model,
    sampled,
    training_step,
)
from babn.benchmark.timing import Cost, Step, measure_in_turns

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
"""Upward paths of lower cost."""

PREDICTED: dict[str, RuleConfig | None] = {
    "softmax": None,
    "BABN sigma=0": babn.BeliefConfig.pairs(sigma=0.0),
    "BABN sigma=1e-6": babn.BeliefConfig.pairs(),
}


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        task: A training step, a forward pass at the posterior mean, or samples.
        name: Name of the method.
        form: How the model was run.
        size: Sizes of model and batch.
        cost: The cost; `None` if the memory was too small.
    """

    task: Task
    name: str
    form: Form
    size: Size
    cost: Cost | None


@dataclass(frozen=True)
class Plan:
    """The measurements to make.

    Attributes:
        sizes: Sizes of model and batch, each with the form in which models run.
        repeats: Number of measured steps.
        reference_up_to: Maximum length for which the reference is measured too.
        routes: Whether to measure only training with cheaper upward paths.
    """

    sizes: tuple[tuple[Size, Form], ...]
    repeats: int
    reference_up_to: int = 512
    routes: bool = False


GPU = Plan(
    ((Size(128, 32), "graphs"), (Size(512, 32), "graphs"), (Size(2048, 4), "graphs")),
    repeats=50,
)
"""ALBERT-base in the sizes of the documentation, compiled and captured as CUDA graphs, since
kernel launches would dominate otherwise."""

CPU = Plan(((Size(128, 4, layers=4), "eager"), (Size(256, 2, layers=4), "eager")), repeats=3)
"""A third of the layers, for a few minutes on two cores."""


@dataclass(frozen=True)
class Candidate:
    """A candidate: a method, its form, and the function that makes its step."""

    task: Task
    name: str
    form: Form
    size: Size
    rule: RuleConfig | None
    make_step: Callable[[Any, dict[str, Tensor]], Step]

    def step(self, device: torch.device) -> Step:
        """The step, on a new model."""
        model = make_model(self.size, self.rule, device)
        return self.make_step(model, make_batch(self.size, device))

    def row(self, cost: Cost | None) -> Row:
        """The row of its measurement."""
        return Row(self.task, self.name, self.form, self.size, cost)

    @property
    def by_reference(self) -> bool:
        """Whether it runs the reference, which takes much more memory."""
        return self.rule is not None and self.rule.kernel == "reference"


def run(plan: Plan, device: torch.device, report: Callable[[str], None]) -> Iterator[Row]:
    """Makes all measurements of a plan, and reports progress."""
    if device.type == "cpu":
        yield from _in_turns(plan, report)
    else:
        yield from _in_processes(plan, device, report)


def _in_turns(plan: Plan, report: Callable[[str], None]) -> Iterator[Row]:
    """Alternates the steps of compared candidates, since other load affects a CPU."""
    for group in _groups(plan):
        entered = [c for c in group if not c.by_reference]
        report(f"{entered[0].task}, {entered[0].size.length} tokens")
        steps = [c.step(torch.device("cpu")) for c in entered]
        costs = measure_in_turns(steps, plan.repeats)
        yield from (c.row(cost) for c, cost in zip(entered, costs, strict=True))


def _in_processes(plan: Plan, device: torch.device, report: Callable[[str], None]) -> Iterator[Row]:
    """Measures all candidates with kernels together, and those of the reference one by one.

    Candidates that do not fit into the memory beside the others are measured alone. Cheaper upward
    paths are measured one length at a time, since they do not fit together.
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


def _groups(plan: Plan) -> list[list[Candidate]]:
    """Groups of candidates that are compared with each other."""
    if plan.routes:
        return [_training(plan, size, form) for size, form in plan.sizes]
    found = [_sampling(replace(plan.sizes[0][0], batch=1))]
    for size, form in plan.sizes:
        found.append(_training(plan, size, form))
        found.append(_predicting(size, form))
    return found


def _training(plan: Plan, size: Size, form: Form) -> list[Candidate]:
    found = []
    for name, rule in (ROUTES if plan.routes else TRAINED).items():
        by_reference = rule is not None and rule.kernel == "reference"
        if by_reference and size.length > plan.reference_up_to:
            continue
        taken: Form = "eager" if by_reference else form
        make = partial(training_step, form=taken)
        found.append(Candidate("train", name, taken, size, rule, make))
    return found


def _predicting(size: Size, form: Form) -> list[Candidate]:
    return [
        Candidate("mean", name, form, size, rule, partial(inference, form=form))
        for name, rule in PREDICTED.items()
    ]


def _sampling(size: Size) -> list[Candidate]:
    forms: tuple[Form, ...] = ("loop", "batched")
    rule = babn.BeliefConfig.pairs()
    return [
        Candidate(
            "sample", "BABN keys", form, size, rule, partial(sampled, samples=SAMPLES, form=form)
        )
        for form in forms
    ]
