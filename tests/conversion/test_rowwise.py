"""The dry run sees in which attention calls queries differ in the keys that they see."""

import pytest
import transformers as hf

import babn
from babn.attention.keys import KeyBeliefMethod
from babn.cli._inspection import outline
from models import CASES, Case, cases

pytestmark = pytest.mark.thorough

EXPECTED = {
    "bert": {"bert.encoder": False},
    "deberta": {"deberta.encoder": False},
    "vit": {"vit": False},
    "clip": {"text_model": True, "vision_model": False},
    "gpt2": {"transformer": True},
    "llama": {"model.layers": True},
    "gemma2": {"model.layers": True},
    "bart": {
        "encoder.layers": False,
        "decoder.layers.*.self_attn": True,
        "decoder.layers.*.encoder_attn": False,
    },
    "t5": {
        "encoder.block": False,
        "decoder.block.*.layer.*.SelfAttention": True,
        "decoder.block.*.layer.*.EncDecAttention": False,
    },
    "whisper": {
        "encoder.layers": False,
        "decoder.layers.*.self_attn": True,
        "decoder.layers.*.encoder_attn": False,
    },
    "torch-encoder": {"encoder": False},
    "torch-transformer": {
        "encoder": False,
        "decoder.layers.*.self_attn": True,
        "decoder.layers.*.multihead_attn": False,
    },
    "multihead": {"layers": False},
    "sdpa": {"layers": False},
    "handmade": {"layers": False},
}


def rowwise(chains: tuple[babn.conversion.calls.Chain, ...]) -> dict[str, set[bool]]:
    return {chain.name: {call.rowwise for call in chain.calls} for chain in chains}


@pytest.mark.parametrize("case", cases(*EXPECTED))
def test_causal_calls_are_found(case: Case) -> None:
    found = rowwise(babn.inspect(case.model(), case.example).chains)

    for part, expected in EXPECTED[case.name].items():
        chosen = {name: kinds for name, kinds in found.items() if part in name}
        assert chosen and all(kinds == {expected} for kinds in chosen.values()), (part, found)
    covered = [name for name in found if any(part in name for part in EXPECTED[case.name])]
    assert covered == list(found)


def test_the_local_layers_of_an_encoder_differ_from_the_global_ones() -> None:
    found = rowwise(babn.inspect(CASES["modernbert"].model()).chains)

    assert {True, False} == set.union(*found.values())
    assert all(len(kinds) == 1 for kinds in found.values())


@pytest.mark.parametrize("case", cases("bert", "gpt2", "bart"))
def test_methods_are_built_with_what_was_found(case: Case) -> None:
    model = babn.convert(case.model())

    for chain, method in zip(model.babn.chains, model.babn.rules, strict=True):
        assert isinstance(method, KeyBeliefMethod)
        assert method.rowwise is chain.calls[0].rowwise


@pytest.mark.parametrize(
    ("config", "expected"),
    [(hf.BertConfig(num_hidden_layers=2), False), (hf.GPT2Config(n_layer=2), True)],
    ids=["bert", "gpt2"],
)
def test_models_without_weights_are_seen_through_as_well(
    config: hf.PreTrainedConfig, expected: bool
) -> None:
    assert rowwise(babn.inspect(outline(config)).chains).popitem()[1] == {expected}


def test_what_was_found_is_saved_and_loaded(tmp_path) -> None:
    model = babn.convert(CASES["bart"].model())
    model.save_pretrained(tmp_path)

    assert rowwise(babn.load(tmp_path).babn.chains) == rowwise(model.babn.chains)
