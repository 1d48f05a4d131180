"""Formulas against models: parameters counted, operations counted by torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import babn
from babn.estimate.costs import Plan, parts
from babn.estimate.sizes import PRESETS, Shape, Workload, shape_of
from models import CASES, GROUPED, TEXT, VOCABULARY

pytestmark = pytest.mark.thorough

LENGTH, BATCH = 12, 2
METHODS = {
    "softmax": None,
    "BAM": babn.BamConfig(),
    "BAM without a network": babn.BamConfig(prior="constant"),
    "per key": babn.BeliefConfig(),
    "per key in the last two": babn.BeliefConfig(layers="last:2", prior_hidden=4),
    "keys": babn.BeliefConfig.pairs(max_length=16),
    "keys without scale": babn.BeliefConfig.pairs(max_length=16, sigma=0.0),
    "keys, two layers a state": babn.BeliefConfig.pairs(max_length=16, upward_share=2),
    "heads": babn.BeliefConfig.pairs(upward="heads"),
    "heads in the last two": babn.BeliefConfig.pairs(upward="heads", layers="last:2"),
}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def model_and_shape(name: str, method: babn.MethodConfig | None = None) -> tuple[Any, Shape]:
    model = CASES[name].model()
    model.config.architectures = [type(model).__name__]  # as save_pretrained writes it
    shape = shape_of(model.config, name)
    model.set_attn_implementation("eager")
    return (model if method is None else babn.convert(model, method)), shape


def plan_of(shape: Shape, method: babn.MethodConfig | None, **work: Any) -> Plan:
    chosen = tuple(range(shape.layers))
    if method is not None and method.layers == "last:2":
        chosen = chosen[-2:]
    work = {"batch": BATCH, "length": LENGTH, **work}
    return Plan(shape, Workload(**work), method, chosen)


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


def of_step(model: Any) -> int:
    """Operations that torch counts in a training step."""
    with counting() as counter:
        model(tokens(), labels=tokens()).loss.backward()
    return counter.get_total_flops()


def expected(plan: Plan) -> float:
    return sum(part.flops for part in parts(plan))


@each_method
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_operations_of_a_pass(name: str, method: babn.MethodConfig | None) -> None:
    model, shape = model_and_shape(name, method)
    assert of_pass(model, tokens())[0] == expected(plan_of(shape, method))


@each_method
def test_operations_of_a_training_step(method: babn.MethodConfig | None) -> None:
    model, shape = model_and_shape("llama", method)
    found = of_step(model.train())
    assert found == pytest.approx(expected(plan_of(shape, method, train=True)), rel=0.01)


@pytest.mark.parametrize(
    "name", ["heads", "heads in the last two", "per key", "per key in the last two"]
)
def test_operations_of_a_step_with_a_frozen_base(name: str) -> None:
    method = METHODS[name]
    model, shape = model_and_shape("llama", method)
    found = of_step(babn.freeze_base(model).train())
    plan = plan_of(shape, method, train=True, frozen=True)
    # The first chosen layer's own inputs need no gradients, which the formula leaves in.
    assert 0.8 * expected(plan) < found <= expected(plan)


@pytest.mark.parametrize("name", ["per key", "keys", "heads"])
def test_operations_in_pieces_and_with_a_cache(name: str) -> None:
    method = METHODS[name]
    model, shape = model_and_shape("llama", method)
    cache, found = None, 0
    for piece in tokens().split(4, 1):
        count, output = of_pass(
            model, piece, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache, found = output.past_key_values, found + count
    heads_too_many = 2 * 2 * BATCH * shape.head_weights  # one runs after each piece
    assert found - heads_too_many == expected(plan_of(shape, method, queries=4))

    count, _ = of_pass(model, tokens()[:, :1], past_key_values=cache, logits_to_keep=1)
    assert count == expected(plan_of(shape, method, length=LENGTH + 1, cached=True))


@each_method
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_parameters_are_those_of_converted_models(
    name: str, method: babn.MethodConfig | None
) -> None:
    model, shape = model_and_shape(name, method)
    added = 0
    if method is not None:
        added = sum(p.numel() for p in model.babn.parameters())
        assert added == plan_of(shape, method).belief_parameters
    assert shape.parameters == sum(p.numel() for p in model.parameters()) - added


def test_sizes_alone_give_llama_s_parameters() -> None:
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))
    sizes = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "layers": 3}
    shape = Shape(name="", **sizes, intermediate=48, vocab=VOCABULARY)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert PRESETS["llama-2-7b"].parameters == 6_738_415_616  # as published
    assert PRESETS["llama-3-8b"].parameters == 8_030_261_248


def test_configurations_are_read() -> None:
    shape = shape_of(hf.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=99), "g")
    assert (shape.hidden, shape.intermediate, shape.mlp_matrices, shape.vocab) == (32, 128, 2, 0)
    albert = shape_of(hf.AlbertConfig(embedding_size=16, **TEXT), "a")
    assert (albert.mlp_matrices, albert.layers) == (2, 3)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("BartConfig", "an encoder and a decoder"),
        ("MixtralConfig", "mixture of experts"),
        ("ViTConfig", "does not name its sizes"),
    ],
)
def test_models_that_are_not_covered_are_refused(kind: str, message: str) -> None:
    with pytest.raises(babn.errors.ConfigError, match=message):
        shape_of(getattr(hf, kind)(), "m")


@pytest.mark.parametrize("sizes", [{"heads": 0}, {"kv_heads": 3}, {"hidden": -1}])
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    usual = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "layers": 3}
    with pytest.raises(babn.errors.ConfigError, match=next(iter(sizes))):
        Shape(name="", intermediate=48, vocab=9, **usual | sizes)
