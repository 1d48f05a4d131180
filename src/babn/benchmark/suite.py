"""All measurements of the benchmark, one after the other."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Literal

import torch
from torch import Tensor

import babn
from babn.attention.rule import RuleConfig
from babn.benchmark.timing import Cost, Step, free, measure, measure_in_turns
from babn.benchmark.workload import (
    Form,
    Size,
    attention_alone,
    inference,
    make_batch,
    make_model,
    sampled,
    training_step,
)

Task = Literal["train", "mean", "sample", "attention"]

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
        task: A training step, a pass at the posterior mean, samples, or one attention call alone.
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
    """

    sizes: tuple[tuple[Size, Form], ...]
    repeats: int
    reference_up_to: int = 512


GPU = Plan(
    ((Size(128, 32), "graphs"), (Size(512, 32), "graphs"), (Size(2048, 4), "graphs")),
    repeats=20,
)
"""ALBERT-base in the sizes that the documents quote, compiled into CUDA graphs, since
launches by the CPU would bound them otherwise."""

CPU = Plan(((Size(128, 4, layers=4), "eager"), (Size(256, 2, layers=4), "eager")), repeats=3)
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
    groups = []
    for size, form in plan.sizes:
        groups.append((size, _training(plan, size, form, device)))
        groups.append((size, _asking(form)))
    single = replace(plan.sizes[0][0], batch=1)
    groups.append((single, _sampling()))
    if device.type == "cuda":
        report("compiling everything on all cores")
        _compile([(size, c) for size, entered in groups for c in entered], device)
    for size, entered in groups:
        yield from _measured(plan, size, device, entered, report)
    for size, _ in plan.sizes:
        report(f"attention alone, {size.length} tokens")
        cost = measure(attention_alone(size, device), device, plan.repeats)
        yield Row("attention", "softmax", "eager", size, cost)


def _training(plan: Plan, size: Size, form: Form, device: torch.device) -> list[Contestant]:
    found = []
    for name, rule in TRAINED.items():
        by_reference = rule is not None and rule.kernel == "reference"
        if by_reference and (device.type == "cpu" or size.length > plan.reference_up_to):
            continue
        taken: Form = "eager" if by_reference else form
        found.append(Contestant("train", name, taken, rule, partial(training_step, form=taken)))
    return found


def _asking(form: Form) -> list[Contestant]:
    return [
        Contestant("mean", name, form, rule, partial(inference, form=form))
        for name, rule in ASKED.items()
    ]


def _sampling() -> list[Contestant]:
    forms: tuple[Form, ...] = ("loop", "batched")
    rule = babn.BeliefConfig()
    return [
        Contestant("sample", "BABN keys", form, rule, partial(sampled, samples=SAMPLES, form=form))
        for form in forms
    ]


def _compile(entered: list[tuple[Size, Contestant]], device: torch.device) -> None:
    """Fills the compilers' caches on disk, since measuring is one after the other."""
    jobs = [(size, c, device) for size, c in entered if c.form in ("compiled", "graphs")]
    workers = min(len(jobs), max(1, (os.cpu_count() or 2) - 2), 10)
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_one_thread) as pool:
        # What fails here fails again when it is measured, and is reported there.
        wait([pool.submit(_take_a_step, *job) for job in jobs])


def _one_thread() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def _take_a_step(size: Size, contestant: Contestant, device: torch.device) -> None:
    contestant.step(size, device)()


def _measured(
    plan: Plan,
    size: Size,
    device: torch.device,
    entered: list[Contestant],
    report: Callable[[str], None],
) -> Iterator[Row]:
    """On a GPU one after the other, since memory counts; on a CPU in turns, for fair times."""
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
