"""The measurements of the benchmark."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch

import babn
from babn.attention.method import MethodConfig
from babn.benchmark import steps
from babn.benchmark.gpu_processes import measured
from babn.benchmark.results import GENERATED, SAMPLES, Form, Row, Size, Task
from babn.benchmark.timing import Step, measure_in_turns

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


def waves(sizes: Sequence[Size], forms: Sequence[Form], methods: Sequence[str]) -> list[list[Row]]:
    """What to measure, in groups that are compiled at the same time and fit into memory together.

    Measurements that are compared are in one group, except those of methods that take much memory.
    """
    encoders = [size for size in sizes if size.model == "albert"]
    decoders = [size for size in sizes if size.model == "llama"]
    light = [method for method in methods if method not in LONGEST]
    heavy = [[method] for method in methods if method in LONGEST]
    random = [method for method in methods if method != "softmax"]
    one_text = [replace(size, batch=1) for size in encoders[:1]]
    found = [_rows(one_text, ["sample"], random, ["pass", "batched"])]
    for form in forms:
        found += [_rows(encoders, ["train", "mean"], each, [form]) for each in (light, *heavy)]
    for form in forms:
        found += [_rows(decoders, [task], methods, [form]) for task in ("train", "mean")]
    found.append(_rows(decoders, ["generate"], methods, ["eager"]))
    return [wave for wave in found if wave]


def _rows(
    sizes: Iterable[Size], tasks: Iterable[Task], methods: Iterable[str], forms: Iterable[Form]
) -> list[Row]:
    return [
        Row(task, method, form, size)
        for size, task, method, form in product(sizes, tasks, methods, forms)
        if size.length <= LONGEST.get(method, size.length)
    ]


def run(
    groups: Iterable[list[Row]],
    repeats: int,
    device: torch.device,
    report: Callable[[str], None],
) -> Iterator[Row]:
    """Measures groups of rows one after the other, and reports progress."""
    for group in groups:
        if device.type == "cpu":
            yield from _in_turns(group, repeats, report)
        else:
            yield from _in_processes(group, repeats, device, report)


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


def _in_turns(group: list[Row], repeats: int, report: Callable[[str], None]) -> Iterator[Row]:
    """Alternates the steps of compared rows, since other load slows a CPU down."""
    for task, size in dict.fromkeys((row.task, row.size) for row in group):
        rows = [row for row in group if (row.task, row.size) == (task, size)]
        report(f"{task}, {size.length} tokens, {rows[0].form}")
        costs = measure_in_turns([make_step(row, torch.device("cpu")) for row in rows], repeats)
        yield from (replace(row, cost=cost) for row, cost in zip(rows, costs, strict=True))


def _in_processes(
    group: list[Row], repeats: int, device: torch.device, report: Callable[[str], None]
) -> Iterator[Row]:
    """Measures rows together, and those that did not fit into memory one by one."""
    profiled = any(row.form in ("compiled", "graphs") for row in group)
    alone: list[Row] = []
    makers = [partial(make_step, row) for row in group]
    costs = measured(makers, device, repeats, report, profiled)
    for row, cost in zip(group, costs, strict=True):
        if cost is None and len(group) > 1:
            alone.append(row)
            continue
        report(f"measured: {row.task}, {row.size.length} tokens, {row.name}, {row.form}")
        yield replace(row, cost=cost)
    for row in alone:
        yield from _in_processes([row], repeats, device, report)
