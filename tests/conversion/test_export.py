"""`torch.export` takes a converted model with noise per key, at the mean and with samples."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import babn
from models import CASES, gap, outputs

pytestmark = pytest.mark.thorough

Unchecked = Callable[..., Any]
EXPORTED = ("sdpa", "bert", "gpt2", "llama")


def exported(name: str, mode: str) -> tuple[float, float]:
    """Gap between the exported and the eager model, and between two runs of the exported one."""
    case = CASES[name]
    model, batch = case.with_key_noise().eval(), case.batch()
    if hasattr(model, "config"):
        model.config.use_cache = False  # caches cannot be exported
    with torch.no_grad():
        with babn.sampling(model) if mode == "sample" else nullcontext():
            program = torch.export.export(model, (), batch, strict=False).module()
        first, second = outputs(program, batch), outputs(program, batch)
        return gap(outputs(model, batch), first), gap(first, second)


def graphs_of_batches() -> list[int]:
    """Number of graphs that were compiled up to each of three training steps."""
    case = CASES["sdpa"]
    model = case.with_key_noise().train()
    torch._dynamo.reset()
    counters.clear()
    faster, found = torch.compile(model, fullgraph=True, backend="aot_eager"), []
    for _ in range(3):
        case.loss(faster).backward()
        found.append(counters["stats"]["unique_graphs"])
    return found


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_model_has_the_posterior_mean(name: str, unchecked: Unchecked) -> None:
    from_eager, between = unchecked(exported, name, "mean")
    assert from_eager < 1e-5 and between == 0


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_model_draws_samples(name: str, unchecked: Unchecked) -> None:
    from_mean, between = unchecked(exported, name, "sample")
    assert from_mean > 1e-3 and between > 1e-3


def test_training_steps_do_not_compile_again(unchecked: Unchecked) -> None:
    found = unchecked(graphs_of_batches)
    assert found == found[:1] * 3
