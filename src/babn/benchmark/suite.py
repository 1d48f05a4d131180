"""The measurements of the benchmark."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

import babn
from babn.attention.method import MethodConfig
from babn.benchmark import steps
from babn.benchmark.gpu_processes import measured
from babn.benchmark.steps import Form, Size
from babn.benchmark.timing import Cost, Step, measure_in_turns

Task = Literal["train", "mean", "sample", "generate"]

SAMPLES = 20
GENERATED = 32

METHODS: dict[str, tuple[str, MethodConfig | None]] = {
    "softmax": ("softmax", None),
    "keys": ("BABN", babn.BeliefConfig()),
    "pairs": ("BABN pairs", babn.BeliefConfig.pairs()),
    "heads": ("BABN heads", babn.BeliefConfig.pairs(upward="heads")),
    "bam": ("BAM", babn.BamConfig()),
}
"""Methods by the name of the option, with the name in tables."""

LONGEST = {"pairs": 2048, "heads": 2048}
"""Largest number of tokens for methods that run out of memory beyond it."""

GPU = {128: 32, 512: 32, 2048: 4, 8192: 1}
"""Batch sizes of ALBERT-base by length."""

CPU = {128: 4, 256: 2}
"""Batch sizes of a third of the layers, for a few minutes on two cores."""

DECODER = Size(8192, 1, layers=16, width=2048, heads=32, model="llama")
"""One billion parameters."""


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        task: A training step, a forward pass at the posterior mean, samples, or generation.
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
        sizes: Sizes of model and batch.
        forms: How models are run.
        methods: The methods, as in `METHODS`.
        repeats: Number of measured steps.
    """

    sizes: tuple[Size, ...]
    forms: tuple[Form, ...]
    methods: tuple[str, ...]
    repeats: int


@dataclass(frozen=True)
class Candidate:
    """A candidate: a method, its form, and the function that makes its step."""

    task: Task
    method: str
    form: Form
    size: Size
    make_step: Callable[[Any, dict[str, Tensor]], Step]

    def step(self, device: torch.device) -> Step:
        """The step, on a new model."""
        model = steps.make_model(self.size, METHODS[self.method][1], device)
        return self.make_step(model, steps.make_batch(self.size, device))

    def row(self, cost: Cost | None) -> Row:
        """The row of its measurement."""
        return Row(self.task, METHODS[self.method][0], self.form, self.size, cost)


def run(plan: Plan, device: torch.device, report: Callable[[str], None]) -> Iterator[Row]:
    """Runs all measurements of a plan, and reports progress."""
    waves = [wave for wave in _waves(plan) if wave]
    for wave in waves:
        if device.type == "cpu":
            yield from _in_turns(wave, plan.repeats, report)
        else:
            yield from _in_processes(wave, plan.repeats, device, report)


def _in_turns(wave: list[Candidate], repeats: int, report: Callable[[str], None]) -> Iterator[Row]:
    """Alternates the steps of compared candidates, since other load slows a CPU down."""
    for task, size in dict.fromkeys((c.task, c.size) for c in wave):
        group = [c for c in wave if (c.task, c.size) == (task, size)]
        report(f"{task}, {size.length} tokens, {group[0].form}")
        costs = measure_in_turns([c.step(torch.device("cpu")) for c in group], repeats)
        yield from (c.row(cost) for c, cost in zip(group, costs, strict=True))


def _in_processes(
    wave: list[Candidate], repeats: int, device: torch.device, report: Callable[[str], None]
) -> Iterator[Row]:
    """Measures candidates together, and those that did not fit into memory one by one."""
    profiled = any(c.form in ("compiled", "graphs") for c in wave)
    alone: list[Candidate] = []
    costs = measured([c.step for c in wave], device, repeats, report, profiled)
    for c, cost in zip(wave, costs, strict=True):
        if cost is None and len(wave) > 1:
            alone.append(c)
            continue
        report(f"measured: {c.task}, {c.size.length} tokens, {c.method}, {c.form}")
        yield c.row(cost)
    for c in alone:
        yield from _in_processes([c], repeats, device, report)


def _waves(plan: Plan) -> Iterator[list[Candidate]]:
    """Candidates that are compiled at the same time and fit into memory together.

    Candidates that are compared are in one wave, except for methods that take much memory.
    """
    light = [method for method in plan.methods if method not in LONGEST]
    heavy = [[method] for method in plan.methods if method in LONGEST]
    decoders = [size for size in plan.sizes if size.model == "llama"]
    encoders = [size for size in plan.sizes if size.model == "albert"]
    if encoders:
        yield _sampling(plan, replace(encoders[0], batch=1))
    for form in plan.forms:
        for methods in (light, *heavy):
            yield _candidates(("train", "mean"), methods, form, encoders)
    for form in plan.forms:
        for task in ("train", "mean"):
            yield _candidates((task,), plan.methods, form, decoders)
    yield [
        Candidate("generate", method, "eager", size, partial(steps.generation, tokens=GENERATED))
        for size in decoders
        for method in plan.methods
    ]


def _candidates(
    tasks: tuple[Task, ...], methods: list[str] | tuple[str, ...], form: Form, sizes: list[Size]
) -> list[Candidate]:
    makers = {"train": steps.training_step, "mean": steps.inference}
    return [
        Candidate(task, method, form, size, partial(makers[task], form=form))
        for size in sizes
        for task in tasks
        for method in methods
        if size.length <= LONGEST.get(method, size.length)
    ]


def _sampling(plan: Plan, size: Size) -> list[Candidate]:
    forms: tuple[Form, ...] = ("pass", "batched")
    return [
        Candidate("sample", method, form, size, partial(steps.sampled, samples=SAMPLES, form=form))
        for method in plan.methods
        for form in forms
        if METHODS[method][1] is not None
    ]
