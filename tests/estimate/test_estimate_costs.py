"""Formulas against models: parameters counted, operations counted by torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import babn
from babn.estimate.costs import (
    Estimate,
    Shape,
    Workload,
    chosen_layers,
    estimates,
    example_shape,
    shape_of,
)
from models import CASES, TEXT, VOCABULARY

pytestmark = pytest.mark.thorough

LENGTH, BATCH = 12, 2
LONGEST = 16
METHODS = {
    "softmax": babn.SoftmaxConfig(),
    "BAM": babn.BamConfig(),
    "BABN per key": babn.BeliefConfig(),
    "BABN per pair, keys": babn.BeliefConfig.pairs(max_length=LONGEST),
    "BABN per pair, heads": babn.BeliefConfig.pairs(upward="heads"),
}
each_method = pytest.mark.parametrize("method", METHODS)
each_choice = pytest.mark.parametrize("layers", ["all", "last:2"])


def model_and_shape(name: str, method: str = "softmax", layers: str = "all") -> tuple[Any, Shape]:
    model = CASES[name].model()
    model.config.architectures = [type(model).__name__]  # as save_pretrained writes it
    shape = shape_of(model.config, name)
    model.set_attn_implementation("eager")
    if method == "softmax":
        return model, shape
    return babn.convert(model, replace(METHODS[method], layers=layers)), shape


def estimate_of(shape: Shape, method: str, layers: str = "all", **work: Any) -> Estimate:
    workload = Workload(**{"batch": BATCH, "length": LENGTH, **work})
    found = estimates(shape, workload, chosen_layers(shape, layers))
    return {each.name: each for each in found}[method]


def columns_of(shape: Shape, method: str, pairs: int, layers: str = "all") -> int:
    """Operations of noise per key on a CPU, where torch's attention has 8 more columns.

    Args:
        shape: The model.
        method: Name of the method; others have no columns.
        pairs: Number of query-key pairs of one head.
        layers: The chosen layers.
    """
    chosen = len(chosen_layers(shape, layers).calls) if method == "BABN per key" else 0
    return chosen * 4 * 8 * shape.heads * pairs


def tokens() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=generator)


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Counts operations; torch's fused attention for CPUs, which is not counted, is off."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def of_pass(model: Any, ids: torch.Tensor, **inputs: Any) -> tuple[int, Any]:
    """Operations that torch counts in a sampled pass, and its output."""
    with counting() as counter, torch.no_grad():
        if hasattr(model, "babn"):
            with babn.sampling(model, seed=0):
                output = model(ids, **inputs)
        else:
            output = model(ids, **inputs)
    return counter.get_total_flops(), output


@each_method
@each_choice
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_operations_of_a_pass(name: str, layers: str, method: str) -> None:
    model, shape = model_and_shape(name, method, layers)
    columns = columns_of(shape, method, BATCH * LENGTH**2, layers)
    assert of_pass(model, tokens())[0] == estimate_of(shape, method, layers).flops + columns


@pytest.mark.parametrize("method", list(METHODS)[2:])
def test_operations_in_pieces_and_with_a_cache(method: str) -> None:
    model, shape = model_and_shape("llama", method)
    cache, found = None, 0
    for piece in tokens().split(4, 1):
        count, output = of_pass(
            model, piece, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache, found = output.past_key_values, found + count
    heads_too_many = 2 * 2 * BATCH * shape.hidden * shape.vocab  # one runs after each piece
    columns = columns_of(shape, method, BATCH * 4 * (4 + 8 + 12))
    assert found - heads_too_many == estimate_of(shape, method, queries=4).flops + columns

    count, _ = of_pass(model, tokens()[:, :1], past_key_values=cache, logits_to_keep=1)
    assert count == estimate_of(shape, method, length=LENGTH + 1, cached=True).flops


@each_method
@each_choice
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_parameters_are_those_of_converted_models(name: str, layers: str, method: str) -> None:
    model, shape = model_and_shape(name, method, layers)
    added = 0
    if method != "softmax":
        added = sum(p.numel() for p in model.babn.parameters())
    assert added == estimate_of(shape, method, layers, length=LONGEST).parameters
    assert shape.parameters == sum(p.numel() for p in model.parameters()) - added


def test_the_example_has_the_published_size() -> None:
    assert example_shape().parameters == 6_738_415_616


def test_configurations_are_read() -> None:
    shape = shape_of(hf.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=99), "g")
    assert (shape.hidden, shape.inner, shape.vocab) == (32, 2 * 128, 0)
    albert = shape_of(hf.AlbertConfig(embedding_size=16, **TEXT), "a")
    assert (albert.inner, albert.layers) == (2 * TEXT["intermediate_size"], 3)


@pytest.mark.parametrize("kind", ["BartConfig", "MixtralConfig", "ViTConfig"])
def test_models_that_are_not_covered_are_refused(kind: str) -> None:
    with pytest.raises(babn.errors.ConfigError, match="not covered"):
        shape_of(getattr(hf, kind)(), "m")
