"""The measurements of the benchmark."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch

import babn
from babn.attention.method import MethodConfig
from babn.benchmark import steps
from babn.benchmark.results import GENERATED, SAMPLED, SAMPLES, Cost, Form, Row, Size, Task
from babn.benchmark.timing import Step, free, measure, measure_in_turns
from babn.errors import is_out_of_memory

CONFIGS: dict[str, MethodConfig | None] = {
    "softmax": None,
    "BABN": babn.BeliefConfig(),
    "BABN pairs": babn.BeliefConfig.pairs(),
    "BABN heads": babn.BeliefConfig.pairs(upward="heads"),
    "BAM": babn.BamConfig(),
}

LONGEST = {"BABN pairs": 2048, "BABN heads": 2048}
"""Largest number of tokens for methods that run out of memory beyond it."""

GPU = {128: 32, 512: 32, 2048: 4, 8192: 1}
"""Batch sizes of ALBERT-base by length."""

CPU = {128: 4, 256: 2}
"""Batch sizes of a third of the layers, for a few minutes on two cores."""

DECODER = Size(8192, 1, layers=16, width=2048, heads=32, model="llama")
"""One billion parameters."""


def sizes_of(lengths: Sequence[int], decoder: bool, quick: bool, gpu: bool) -> list[Size]:
    """The sizes to measure.

    Args:
        lengths: Numbers of tokens; empty for the usual ones.
        decoder: Whether to measure the decoder instead of ALBERT.
        quick: Whether to measure one tiny size.
        gpu: Whether the models run on a GPU.
    """
    batches, others, layers = (GPU, 8192, 12) if gpu else (CPU, 1, 4)
    if decoder:
        sizes = [replace(DECODER, length=length) for length in lengths or [DECODER.length]]
    else:
        sizes = [
            Size(length, batches.get(length, max(1, others // length)), layers)
            for length in lengths or batches
        ]
    if quick:
        return [replace(sizes[0], length=16, batch=2, layers=2, width=32, heads=4)]
    return sizes


def plan(sizes: Sequence[Size], forms: Sequence[Form], methods: Sequence[str]) -> list[list[Row]]:
    """What to measure, in groups of rows that are compared with each other."""
    tasks: tuple[Task, ...] = ("train", "mean")
    groups = []
    for size in sizes:
        names = _fitting(methods, size)
        for form, task in product(forms, tasks):
            groups.append([Row(task, name, form, size) for name in names])
        if size.model == "llama":
            groups.append([Row("generate", name, "eager", size) for name in names])
    if sizes[0].model == "albert":
        text = replace(sizes[0], batch=1)
        random = [name for name in _fitting(methods, text) if name != "softmax"]
        groups.append([Row("sample", name, form, text) for name in random for form in SAMPLED])
    return [group for group in groups if group]


def _fitting(methods: Sequence[str], size: Size) -> list[str]:
    """The methods that fit into memory."""
    return [name for name in methods if size.length <= LONGEST.get(name, size.length)]


def run(
    groups: Iterable[list[Row]],
    repeats: int,
    device: torch.device,
    report: Callable[[str], None],
) -> Iterator[Row]:
    """Measures groups of rows, and reports progress.

    On a CPU the steps of a group take turns, since other load slows a CPU down.
    """
    for group in groups:
        if device.type == "cpu":
            report(about(group[0]))
            costs = measure_in_turns([make_step(row, device) for row in group], repeats)
            yield from (replace(row, cost=cost) for row, cost in zip(group, costs, strict=True))
            continue
        for row in group:
            report(f"{about(row)}, {row.name}")
            yield replace(row, cost=_measure_on_gpu(row, repeats, device))


def about(row: Row) -> str:
    """A line about what is measured."""
    return f"{row.task}, {row.size.length} tokens, {row.form}"


def _measure_on_gpu(row: Row, repeats: int, device: torch.device) -> Cost | None:
    """The cost of a row; `None` if the GPU's memory is too small."""
    torch.compiler.reset()  # graphs of earlier models would stay in memory
    try:
        return measure(make_step(row, device), device, repeats)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        free(device)


def make_step(row: Row, device: torch.device) -> Step:
    """The step that a row measures, on a new model."""
    model = steps.make_model(row.size, CONFIGS[row.name], device)
    batch = steps.make_batch(row.size, device)
    match row.task:
        case "train":
            return steps.training_step(model, batch, row.form)
        case "mean":
            return steps.inference(model, batch, row.form)
        case "sample":
            return steps.sampled(model, batch, SAMPLES, row.form)
        case "generate":
            return steps.generation(model, batch, GENERATED)
