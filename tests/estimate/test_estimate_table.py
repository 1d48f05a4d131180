"""Memory and the table, against sums written out by hand."""

from pathlib import Path

import pytest
import torch
import transformers as hf

from babn.errors import ConfigError
from babn.estimate.costs import (
    Estimate,
    Shape,
    Workload,
    chosen_layers,
    estimates,
    example_shape,
    shape_of,
    table,
)
from models import GROUPED

ROOT = Path(__file__).parents[2]
TINY = shape_of(hf.LlamaConfig(**GROUPED, architectures=["LlamaForCausalLM"]), "tiny")
SEVEN = example_shape()


def by_name(shape: Shape = TINY, layers: str = "all", **work: object) -> dict[str, Estimate]:
    found = estimates(shape, Workload(**work), chosen_layers(shape, layers))
    return {estimate.name: estimate for estimate in found}


@pytest.mark.parametrize(
    ("work", "passes"),
    [
        ({"length": 5}, [(5, 5)]),
        ({"length": 5, "queries": 2}, [(2, 2), (2, 4), (1, 5)]),
        ({"length": 5, "queries": 9}, [(5, 5)]),
        ({"length": 5, "cached": True}, [(1, 5)]),
    ],
)
def test_passes_have_the_queries_and_keys_of_a_cache(
    work: dict[str, int], passes: list[tuple[int, int]]
) -> None:
    assert Workload(**work).passes == passes


def test_memory_of_pairs_is_states_and_maps_and_the_mask() -> None:
    length, batch = 16, 6
    pairs = batch * 4 * length**2
    found = by_name(batch=batch, length=length, layers="last:2")
    assert found["softmax"].noise == 0
    assert found["BAM"].noise == pairs / 4
    for axis in ("keys", "heads"):
        states, maps = 2, 2
        expected = 2 * pairs * (states + maps) + pairs / 4
        assert found[f"BABN per pair, {axis}"].noise == expected


def test_noise_per_key_is_numbers_of_keys() -> None:
    length, batch = 16, 6
    found = by_name(batch=batch, length=length, layers="last:2")
    own, softmax = found["BABN per key"], found["softmax"]
    keys, heads, key_heads = batch * length, TINY.heads, TINY.kv_heads
    assert own.flops == softmax.flops
    assert own.noise == 4 * keys * (2 * heads + heads + key_heads)
    assert own.memory == softmax.memory + own.noise + 4 * own.parameters


def test_memory_of_softmax_is_parameters_activations_logits_and_a_cache() -> None:
    tokens, vocab = 2 * 16, TINY.vocab
    whole = by_name(batch=2, length=16)["softmax"].memory
    each = 4 * TINY.hidden + 2 * (4 + 2) * TINY.head_dim + 3 * GROUPED["intermediate_size"]
    assert whole == 2 * TINY.parameters + 2 * tokens * each + 4 * tokens * vocab
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))
    with torch.no_grad():
        cache = model(torch.ones(2, 16, dtype=torch.long)).past_key_values
    held = sum(x.numel() for layer in cache.layers for x in (layer.keys, layer.values))
    extended = by_name(batch=2, length=16, cached=True)["softmax"].memory
    assert extended == 2 * TINY.parameters + 2 * 2 * each + 4 * 2 * vocab + 2 * held


def test_a_long_context_as_documented() -> None:
    """The statements of docs/scale.md."""
    whole = by_name(SEVEN, length=32768)
    assert whole["BABN per pair, keys"].parameters > 15 * SEVEN.parameters
    assert whole["BABN per pair, heads"].parameters < 1e-4 * SEVEN.parameters
    assert whole["BABN per key"].parameters < 1e-5 * SEVEN.parameters
    assert whole["BABN per pair, heads"].noise > 2**40
    assert whole["BABN per key"].noise < 0.05 * whole["BABN per pair, heads"].noise
    pieces = by_name(SEVEN, length=32768, queries=512, layers="last:4")
    assert pieces["BABN per pair, heads"].noise < 8 * 2**30
    token = by_name(SEVEN, length=32768, cached=True, layers="last:4")
    assert token["BABN per pair, heads"].noise < 2**24


@pytest.mark.parametrize(
    ("title", "layers", "work"),
    [
        ("all at once, 32 layers", "all", {}),
        ("all at once, last 4", "last:4", {}),
        ("512 at a time, last 4", "last:4", {"queries": 512}),
        ("one more token, last 4", "last:4", {"cached": True}),
    ],
)
def test_the_numbers_of_the_document_are_these(
    title: str, layers: str, work: dict[str, int]
) -> None:
    document = (ROOT / "docs/scale.md").read_text()
    found = estimates(SEVEN, Workload(length=32768, **work), chosen_layers(SEVEN, layers))
    for line in table(found):
        assert " | ".join(line) in document.partition(f"| {title} |")[2]


def test_layers_are_chosen_as_in_conversion() -> None:
    assert [call.order for call in chosen_layers(SEVEN, "last:4").calls] == [28, 29, 30, 31]
    assert [call.order for call in chosen_layers(TINY, "0,2").calls] == [0, 2]
    with pytest.raises(ConfigError, match="matches no attention call"):
        chosen_layers(TINY, "9")


def test_the_table_compares_with_softmax() -> None:
    lines = table(list(by_name(length=16).values()))
    assert [line[0] for line in lines] == [
        "softmax", "BAM", "BABN per key", "BABN per pair, keys", "BABN per pair, heads"
    ]  # fmt: skip
    assert lines[0][-1] == "1.00" and lines[0][1] == "0"
