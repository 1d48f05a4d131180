"""Memory and the table, against sums written out by hand and against measurements."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

import babn
from babn.benchmark.results import Row, rows_of
from babn.benchmark.steps import model_config
from babn.errors import ConfigError
from babn.estimate import costs
from babn.estimate.costs import Estimate, estimates, table
from babn.estimate.sizes import Shape, Workload, preset, shape_of
from models import GROUPED

ROOT = Path(__file__).parents[2]
TINY = shape_of(hf.LlamaConfig(**GROUPED, architectures=["LlamaForCausalLM"]), "tiny")
SEVEN = preset("llama-2-7b")


def by_name(
    shape: Shape = TINY, layers: str = "all", kernels: bool = True, **work: object
) -> dict[str, Estimate]:
    found = estimates(shape, Workload(**work), layers=layers, kernels=kernels)
    return {estimate.name: estimate for estimate in found}


def total(estimate: Estimate) -> float:
    return sum(estimate.memory.values())


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
    found = Workload(batch=2, samples=3, **work)
    assert found.passes == passes
    assert found.most_pairs == 6 * max(q * k for q, k in passes)


def test_memory_of_pairs_is_states_and_maps_and_the_mask() -> None:
    length, batch, samples = 16, 2, 3
    pairs = batch * samples * 4 * length**2
    found = by_name(batch=batch, samples=samples, length=length, layers="last:2")
    assert found["softmax"].memory["pairs"] == 0
    assert found["BAM"].memory["pairs"] == pairs / 4
    for axis in ("keys", "heads"):
        states, maps = 2, 2
        assert (
            found[f"BABN per pair, {axis}"].memory["pairs"]
            == 2 * pairs * (states + maps) + pairs / 4
        )


def test_noise_per_key_with_kernels_is_numbers_of_keys() -> None:
    length, batch, samples = 16, 2, 3
    work = {"batch": batch, "length": length}
    found = by_name(samples=samples, layers="last:2", **work)
    own, softmax = found["BABN per key"], found["softmax"]
    keys, heads, key_heads = batch * length, TINY.heads, TINY.kv_heads
    assert own.flops == softmax.flops
    assert own.memory["pairs"] == 4 * samples * keys * (2 * heads + heads + key_heads)
    step = by_name(train=True, layers="last:2", **work)["BABN per key"]
    assert step.memory["pairs"] == 4 * keys * (2 * heads + 2 * (heads + 3 * key_heads))


def test_noise_per_key_without_kernels_is_torch_s_attention_with_columns() -> None:
    length, batch, samples = 16, 2, 3
    found = by_name(batch=batch, samples=samples, length=length, layers="last:2", kernels=False)
    own, softmax = found["BABN per key"], found["softmax"]
    keys, heads = batch * samples * length, TINY.heads
    both = heads + TINY.kv_heads
    assert own.memory["pairs"] == 2 * keys * both * (TINY.head_dim + 16) + 4 * keys * 8 * heads
    columns = 2 * 4 * heads * keys * length * 8
    assert own.flops == {**softmax.flops, "noise per key": columns}


def test_noise_per_key_of_one_query_is_a_bias() -> None:
    found = by_name(batch=2, length=16, cached=True)
    own, keys = found["BABN per key"], 2 * 16
    assert own.flops == found["softmax"].flops
    assert own.memory["pairs"] == 4 * keys * 8 * TINY.heads + 2 * keys * TINY.heads


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


def test_what_noise_per_key_keeps_for_backward_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "HALF", 4)  # numbers of a model on a CPU
    length, batch = 128, 2
    config = hf.LlamaConfig(**GROUPED | {
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "head_dim": 32,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": length,
    })  # fmt: skip
    ids = torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(0))
    plain, converted = hf.LlamaForCausalLM(config), babn.convert(hf.LlamaForCausalLM(config))
    added = saved_bytes(converted, ids) - saved_bytes(plain, ids)
    work = {"batch": batch, "length": length, "train": True}
    expected = by_name(shape_of(config, "small"), kernels=False, **work)["BABN per key"].memory[
        "pairs"
    ]
    assert expected == pytest.approx(added, rel=0.1)


def test_memory_of_a_training_step() -> None:
    found = by_name(length=16, train=True)
    frozen = by_name(length=16, train=True, frozen=True)
    belief = 3 * (3 * (4**2 + 4) + 8 * 10 + 2 * 10 + 1)
    assert found["BABN per pair, heads"].memory["training"] == 10 * TINY.parameters + 12 * belief
    assert frozen["BABN per pair, heads"].memory["training"] == 12 * belief
    per_key = 3 * (1 + 8 * 10 + 2 * 10 + 1)
    assert frozen["BABN per key"].memory["training"] == 12 * per_key
    assert frozen["softmax"].memory["training"] == 10 * TINY.parameters


def test_the_cache_is_keys_and_values() -> None:
    found = by_name(length=16, batch=2, cached=True)["softmax"].memory
    assert found["cache"] == 2 * 3 * 2 * 16 * 2 * 8 * 2
    config = hf.LlamaConfig(**GROUPED)
    model = hf.LlamaForCausalLM(config).to(torch.float16)
    with torch.no_grad():
        cache = model.float()(torch.ones(2, 16, dtype=torch.long)).past_key_values
    held = sum(x.numel() for layer in cache.layers for x in (layer.keys, layer.values))
    assert found["cache"] == 2 * held


def test_a_long_context_as_documented() -> None:
    """The statements of docs/scale.md."""
    whole = by_name(SEVEN, length=32768)
    assert whole["BABN per pair, keys"].parameters_added > 15 * SEVEN.parameters
    assert whole["BABN per pair, heads"].parameters_added < 1e-4 * SEVEN.parameters
    assert whole["BABN per key"].parameters_added < 1e-5 * SEVEN.parameters
    assert whole["BABN per pair, heads"].memory["pairs"] > 2**40
    assert (
        whole["BABN per key"].memory["pairs"] < 0.05 * whole["BABN per pair, heads"].memory["pairs"]
    )
    pieces = by_name(SEVEN, length=32768, queries=512, layers="last:4")
    assert pieces["BABN per pair, heads"].memory["pairs"] < 8 * 2**30
    token = by_name(SEVEN, length=32768, cached=True, layers="last:4")
    assert token["BABN per pair, heads"].memory["pairs"] < 2**24


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
    for line in table(estimates(SEVEN, Workload(length=32768, **work), layers=layers)):
        assert " | ".join(line) in document.partition(f"| {title} |")[2]


def test_layers_are_chosen_as_in_conversion() -> None:
    (found, *_) = estimates(SEVEN, Workload(), layers="last:4")
    assert found.to_dict()["layers"] == [28, 29, 30, 31]
    (found, *_) = estimates(TINY, Workload(), layers="0,2")
    assert found.to_dict()["layers"] == [0, 2]
    with pytest.raises(ConfigError, match="matches no attention call"):
        estimates(TINY, Workload(), layers="9")


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


MEASURED = ROOT / "benchmarks/results/bench.json"
METHODS = {"BAM": "BAM", "BABN heads": "BABN per pair, heads", "BABN pairs": "BABN per pair, keys"}
STEPS = {
    (row.name, row.size.length): row
    for row in rows_of(json.loads(MEASURED.read_text()))
    if (row.task, row.form) == ("train", "graphs") and row.cost
}
CASES = [case for case in STEPS if case[0] in METHODS]


def kept_then(row: Row) -> int:
    """Bytes of results of maps over heads, which the measured kernels kept if they were small."""
    size = row.size
    each = 2 * 2 * size.batch * size.heads * size.length**2
    return size.layers * each if row.name == "BABN heads" and each <= 2**25 else 0


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "length"), CASES)
def test_memory_is_about_what_was_measured(name: str, length: int) -> None:
    """`babn bench` on a GPU; estimates leave out buffers of torch and of compiled code."""
    row, base = STEPS[name, length], STEPS["softmax", length]
    assert row.cost is not None and base.cost is not None
    shape = shape_of(model_config(row.size), "ALBERT")
    found = by_name(shape, batch=row.size.batch, length=length, train=True)
    own, softmax = total(found[METHODS[name]]), total(found["softmax"])
    measured = row.cost.memory - kept_then(row)
    assert own - softmax == pytest.approx(measured - base.cost.memory, rel=0.2, abs=2**25)
    assert own == pytest.approx(measured, rel=0.25)


def test_several_sizes_were_measured() -> None:
    assert {length for _, length in CASES} >= {128, 512, 2048}
