"""Memory, time and the table, against sums written out by hand."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

import babn
from babn.errors import ConfigError
from babn.estimate import memory as memory_module
from babn.estimate.costs import INSTRUCTIONS, Part
from babn.estimate.estimates import Machine, chosen_layers, estimates, table
from babn.estimate.sizes import PRESETS, Shape, Workload
from models import GROUPED

TINY = Shape(
    name="tiny",
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    layers=3,
    intermediate=48,
    vocab=99,
)
SEVEN = PRESETS["llama-2-7b"]


def by_name(shape: Shape = TINY, layers: str = "all", **work: object) -> dict[str, object]:
    found = estimates(shape, Workload(**work), layers=layers)
    return {estimate.name: estimate for estimate in found}


def test_a_part_takes_the_longest_of_products_traffic_and_arithmetic() -> None:
    part = Part("", flops=2e12, bytes=1e12, instructions=3e12)
    assert part.seconds(bandwidth=1.0, tflops=1.0, tips=2.0) == 2.0
    assert part.seconds(bandwidth=0.25, tflops=1.0, tips=2.0) == 4.0
    assert part.seconds(bandwidth=1.0, tflops=1.0, tips=0.5) == 6.0


def test_instructions_are_those_that_were_counted() -> None:
    """The faster loops, for shapes k of at least one; forward has a loop over scores first.

    With an upward path, rows have a third loop, which completes the gradients of scores.
    """
    file = Path(__file__).parents[2] / "tools/results/instructions.json"
    counted = json.loads(file.read_text())["kernels"]
    for method, name in (("belief", "BABN keys"), ("bam", "BAM")):
        loops = {
            kernel: [loop["instructions"] for loop in counted[f"{name}, {kernel}"]]
            for kernel in ("forward", "rows", "columns")
        }
        first, *rest = loops["forward"]
        rows = min(loops["rows"][:2]) + sum(loops["rows"][2:])
        found = first + min(rest), rows + loops["columns"][0]
        assert INSTRUCTIONS[method] == pytest.approx(found, abs=0.7)


def test_arithmetic_is_that_of_the_chosen_layers() -> None:
    found = by_name(TINY, length=16, batch=3, train=True)
    (part,) = [part for part in found["BAM"].parts if part.name == "random attention"]
    assert part.instructions == (47 + 57) * TINY.layers * 3 * TINY.heads * 16 * 16
    assert not any(part.instructions for part in found["softmax"].parts)


@pytest.mark.parametrize(
    ("work", "sizes"),
    [
        ({"length": 5}, [(5, 5)]),
        ({"length": 5, "queries": 2}, [(2, 2), (2, 4), (1, 5)]),
        ({"length": 5, "queries": 9}, [(5, 5)]),
        ({"length": 5, "cached": True}, [(1, 5)]),
    ],
)
def test_passes_have_the_queries_and_keys_of_a_cache(
    work: dict[str, int], sizes: list[tuple[int, int]]
) -> None:
    found = Workload(batch=2, samples=3, **work)
    assert found.sizes == sizes
    assert found.pairs == 6 * sum(q * k for q, k in sizes)
    assert found.pairs_by_keys == 6 * sum(q * k * k for q, k in sizes)
    assert found.pairs_at_once == 6 * max(q * k for q, k in sizes)


def test_memory_of_pairs_is_states_and_maps_and_the_mask() -> None:
    length, batch, samples = 16, 2, 3
    pairs = batch * samples * 4 * length**2
    found = by_name(batch=batch, samples=samples, length=length, layers="last:2")
    assert found["softmax"].memory.pairs == 0
    assert found["BAM"].memory.pairs == pairs / 4
    for axis in ("keys", "heads"):
        states, maps = 2, 2
        assert (
            found[f"BABN per pair, {axis}"].memory.pairs == 2 * pairs * (states + maps) + pairs / 4
        )


def test_noise_per_key_is_torch_s_attention_with_columns() -> None:
    length, batch, samples = 16, 2, 3
    found = by_name(batch=batch, samples=samples, length=length, layers="last:2")
    own, softmax = found["BABN per key"], found["softmax"]
    keys, heads, numbers = batch * samples * length, TINY.heads, TINY.kv_heads * TINY.head_dim
    both = heads + TINY.kv_heads
    assert own.memory.pairs == 2 * keys * both * (TINY.head_dim + 16) + 4 * keys * 8 * heads
    assert own.flops == softmax.flops + 2 * 4 * heads * keys * length * 8
    (part,) = [part for part in own.parts if part not in softmax.parts]
    assert part.name == "random attention"
    copies = 2 * 2 * keys * 2 * both * (TINY.head_dim + 8)
    assert part.bytes == 2 * (keys * (2 * numbers + 8 * heads) + copies)
    assert part.instructions == 2 * keys * (2 * numbers + 88 * heads)


def test_noise_per_key_of_one_query_is_a_bias() -> None:
    found = by_name(batch=2, length=16, cached=True)
    own, softmax = found["BABN per key"], found["softmax"]
    keys, numbers = 2 * 16, TINY.kv_heads * TINY.head_dim
    assert own.memory.pairs == 4 * keys * 8 * TINY.heads + 2 * keys * TINY.heads
    (part,) = [part for part in own.parts if part not in softmax.parts]
    each = keys * (2 * numbers + 8 * TINY.heads) + 2 * 2 * keys * TINY.heads
    assert part.bytes == TINY.layers * each


def saved_bytes(model: hf.LlamaForCausalLM, ids: torch.Tensor) -> int:
    """Bytes that a training pass keeps for backward, without parameters."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(input_ids=ids, labels=ids)
    return sum(storage.nbytes() for storage in kept.values())


def test_what_noise_per_key_keeps_for_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "HALF", 4)  # numbers of a model on a CPU
    shape = Shape(name="", hidden=64, heads=8, kv_heads=4, head_dim=32, layers=3,
                  intermediate=64, vocab=99)  # fmt: skip
    length, batch = 128, 2
    config = hf.LlamaConfig(**GROUPED | {
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "head_dim": 32,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": length,
    })  # fmt: skip
    ids = torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(0))
    plain, converted = hf.LlamaForCausalLM(config), babn.convert(hf.LlamaForCausalLM(config))
    added = saved_bytes(converted, ids) - saved_bytes(plain, ids)
    work = {"batch": batch, "length": length, "train": True}
    expected = by_name(shape, **work)["BABN per key"].memory.pairs
    assert expected == pytest.approx(added, rel=0.1)


def test_memory_of_a_training_step() -> None:
    found = by_name(length=16, train=True)
    frozen = by_name(length=16, train=True, frozen=True)
    belief = 3 * (3 * (4**2 + 4) + 8 * 10 + 2 * 10 + 1)
    assert found["BABN per pair, heads"].memory.training == 10 * TINY.parameters + 12 * belief
    assert frozen["BABN per pair, heads"].memory.training == 12 * belief
    per_key = 3 * (1 + 8 * 10 + 2 * 10 + 1)
    assert frozen["BABN per key"].memory.training == 12 * per_key
    assert frozen["softmax"].memory.training == 10 * TINY.parameters


def test_the_cache_is_keys_and_values() -> None:
    found = by_name(length=16, batch=2, cached=True)["softmax"].memory
    assert found.cache == 2 * 3 * 2 * 16 * 2 * 8 * 2
    config = hf.LlamaConfig(**GROUPED)
    model = hf.LlamaForCausalLM(config).to(torch.float16)
    with torch.no_grad():
        cache = model.float()(torch.ones(2, 16, dtype=torch.long)).past_key_values
    held = sum(x.numel() for layer in cache.layers for x in (layer.keys, layer.values))
    assert found.cache == 2 * held


def test_a_long_context_as_documented() -> None:
    """The statements of docs/scale.md."""
    whole = by_name(SEVEN, length=32768)
    assert whole["BABN per pair, keys"].plan.belief_parameters > 15 * SEVEN.parameters
    assert whole["BABN per pair, heads"].plan.belief_parameters < 1e-4 * SEVEN.parameters
    assert whole["BABN per key"].plan.belief_parameters < 1e-5 * SEVEN.parameters
    assert whole["BABN per pair, heads"].memory.pairs > 2**40
    assert whole["BABN per key"].memory.pairs < 0.05 * whole["BABN per pair, heads"].memory.pairs
    assert whole["softmax"].seconds < whole["BABN per key"].seconds < whole["BAM"].seconds
    pieces = by_name(SEVEN, length=32768, queries=512, layers="last:4")
    assert pieces["BABN per pair, heads"].memory.pairs < 8 * 2**30
    assert pieces["BABN per pair, heads"].seconds < 1.6 * pieces["softmax"].seconds
    token = by_name(SEVEN, length=32768, cached=True, layers="last:4")
    assert token["BABN per pair, heads"].seconds < 1.02 * token["softmax"].seconds


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
    document = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    for line in table(estimates(SEVEN, Workload(length=32768, **work), layers=layers)):
        assert " | ".join(line) in document.partition(f"| {title} |")[2]


def test_layers_are_chosen_as_in_conversion() -> None:
    assert chosen_layers(SEVEN, "last:4") == (28, 29, 30, 31)
    assert chosen_layers(TINY, "0,2") == (0, 2)
    with pytest.raises(ConfigError, match="matches no attention call"):
        chosen_layers(TINY, "9")


def test_the_table_compares_with_softmax() -> None:
    lines = table(estimates(TINY, Workload(length=16), upward=("heads",)))
    assert [line[0] for line in lines] == ["softmax", "BAM", "BABN per key", "BABN per pair, heads"]
    assert lines[0][-1] == "1.00" and lines[0][1] == "0"


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 0},
        {"train": True, "queries": 3},
        {"frozen": True},
        {"queries": -1},
    ],
)
def test_impossible_workloads_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Workload(**wrong)
    with pytest.raises(ConfigError, match="bandwidth=0"):
        Machine(bandwidth=0.0)
