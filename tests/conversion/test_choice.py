"""Models some of whose layers are converted while the others keep their own attention."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import babn
from babn.conversion.attend import CALL_SITE
from babn.errors import ConfigError, MismatchError
from models import CASES, GROUPED, Case, cases, enlarge, gap, outputs


def chosen(case: Case, layers: str) -> dict[str, list[int]]:
    """For each chain, which calls of the pass it takes."""
    found = babn.inspect(case.model(), case.example, babn.BeliefConfig.pairs(layers=layers))
    return {chain.name: [call.order for call in chain.calls] for chain in found.chains}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "layers", "expected"),
    [
        ("llama", "last:1", {"model.layers.*.self_attn": [2]}),
        ("llama", "first:2", {"model.layers.*.self_attn": [0, 1]}),
        ("llama", "0,-1", {"model.layers.*.self_attn": [0, 2]}),
        ("llama", "first:1,model.layers.1.*", {"model.layers.*.self_attn": [0, 1]}),
        ("albert", "1", {"albert.encoder.albert_layer_groups.*.albert_layers.*.attention": [1]}),
        ("bart", "*.encoder_attn", {"model.decoder.layers.*.encoder_attn": [3, 5, 7]}),
        (
            "bart",
            "last:1",
            {
                "model.encoder.layers.*.self_attn": [1],
                "model.decoder.layers.*.self_attn": [6],
                "model.decoder.layers.*.encoder_attn": [7],
            },
        ),
        # Windowed and full layers form two chains but are numbered through.
        (
            "gemma2",
            "last:2",
            {"model.layers.*.self_attn#0": [1], "model.layers.*.self_attn#1": [2]},
        ),
    ],
)
def test_layers_are_counted_along_each_stack(
    name: str, layers: str, expected: dict[str, list[int]]
) -> None:
    assert chosen(CASES[name], layers) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", cases("albert", "bart", "deberta", "gemma2", "gpt2", "multihead", "sdpa", "handmade")
)
def test_the_mean_is_unchanged_and_samples_are_not(case: Case) -> None:
    model = case.converted(sigma=0.0, rho=0.1, layers="last:1")
    batch = case.batch()
    with torch.no_grad():
        assert gap(outputs(case.model(), batch), outputs(model, batch)) < 1e-4
        with babn.sampling(model, seed=0):
            assert gap(outputs(model, batch), outputs(model, batch)) > 1e-3
    assert gap(outputs(case.model(), batch), outputs(babn.revert(model), batch)) == 0


def llama(layers: int) -> Any:
    config = hf.LlamaConfig(**GROUPED | {"num_hidden_layers": layers})
    return enlarge(hf.LlamaForCausalLM(config), 0.15).eval()


def test_the_chain_runs_over_the_chosen_layers_alone() -> None:
    """The last two of three layers are what a model of two layers is on the first one's output."""
    batch = CASES["llama"].batch()
    settings = {"rho": 0.5, "sigma": 0.1, "max_length": 16}
    base, part = llama(3), llama(2)
    part.model.layers = nn.ModuleList(base.model.layers[1:])
    part.model.embed_tokens, part.model.norm = base.model.embed_tokens, base.model.norm
    part.lm_head = base.lm_head
    whole = babn.convert(copy.deepcopy(base), babn.BeliefConfig.pairs(layers="last:2", **settings))
    for index, layer in enumerate(part.model.layers):
        layer.self_attn.layer_idx = index
    babn.convert(part, babn.BeliefConfig.pairs(**settings))
    for model in (whole, part):
        enlarge(model.babn, 0.1)
    with torch.no_grad(), babn.sampling(whole, seed=3):
        expected = whole(**batch, output_hidden_states=True)
    first = expected.hidden_states[1]
    with torch.no_grad(), babn.sampling(part, seed=3):
        found = part(inputs_embeds=first, attention_mask=batch["attention_mask"])
    torch.testing.assert_close(found.logits, expected.logits)


class CountSdpa(TorchFunctionMode):
    """Counts the calls of torch's own attention, and those that need no mask to be causal."""

    calls = causal = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.calls += 1
            self.causal += kwargs["is_causal"] and kwargs["attn_mask"] is None
        return func(*args, **(kwargs or {}))


def test_other_layers_run_through_torch_and_know_nothing() -> None:
    model = CASES["llama"].converted(rho=0.1, layers="last:1")
    with torch.no_grad(), babn.sampling(model, seed=0), CountSdpa() as counter:
        model(**CASES["llama"].batch())
    assert (counter.calls, counter.causal) == (2, 0)  # there is padding
    with torch.no_grad(), babn.sampling(model, seed=0), CountSdpa() as counter:
        model(CASES["llama"].batch()["input_ids"])
    assert (counter.calls, counter.causal) == (2, 2)
    converted = [hasattr(layer.self_attn, CALL_SITE) for layer in model.model.layers]
    assert converted == [False, False, True]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mistral"])
def test_without_padding_no_layer_sees_the_future(name: str) -> None:
    case = CASES[name]
    model = case.converted(rho=0.1, sigma=0.0, layers="last:1")
    ids = case.batch()["input_ids"]
    later = ids.clone()
    later[:, -1] = (later[:, -1] + 1) % 99
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids).logits, case.model()(ids).logits, rtol=1e-3, atol=1e-4
        )
        with babn.sampling(model, seed=0, fixed=True):
            one, other = model(ids).logits, model(later).logits
    assert torch.equal(one[:, :-1], other[:, :-1])
    assert not torch.equal(one[:, -1], other[:, -1])


def test_weights_of_other_layers_can_still_be_had() -> None:
    model, batch = CASES["llama"].converted(sigma=0.0, layers="last:1"), CASES["llama"].batch()
    expected = CASES["llama"].model()
    expected.set_attn_implementation("eager")
    seen = batch["attention_mask"].bool()[:, None, :, None]
    with torch.no_grad():
        found = model(**batch, output_attentions=True).attentions
        known = expected(**batch, output_attentions=True).attentions
    for x, y in zip(found, known, strict=True):
        torch.testing.assert_close(x * seen, y * seen)


def test_one_of_a_shared_module_s_calls() -> None:
    model, batch = CASES["albert"].converted(rho=0.1, layers="1"), CASES["albert"].batch()
    assert len(babn.attention_maps(model, batch)) == 1
    with torch.no_grad(), babn.sampling(model, seed=0):
        states = [model(**batch, output_hidden_states=True).hidden_states for _ in range(2)]
    assert [torch.equal(x, y) for x, y in zip(*states, strict=True)] == [True, True, False, False]


def test_dropout_of_other_layers_stays_on() -> None:
    config = hf.LlamaConfig(**GROUPED | {"attention_dropout": 0.5})
    model = babn.convert(
        hf.LlamaForCausalLM(config), babn.BeliefConfig.pairs(layers="last:1")
    ).train()
    batch = CASES["llama"].batch()
    hidden = [model(**batch, output_hidden_states=True).hidden_states[1] for _ in range(2)]
    assert not torch.equal(*hidden)


def test_training_reaches_the_chosen_layers_beliefs() -> None:
    case = CASES["llama"]
    model = case.converted(layers="last:2").train()
    case.loss(model).backward()
    assert len(babn.kl_per_layer(model)) == 2
    assert all(p.grad is not None and p.grad.any() for p in model.babn.parameters() if p.ndim > 1)


def sampled(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return babn.predict(model, batch, samples=2).sample_logits


@pytest.mark.parametrize(("name", "layers"), [("llama", "last:2"), ("albert", [1])])
def test_the_choice_is_saved_and_loaded(name: str, layers: str | list[int], tmp_path: Path) -> None:
    case = CASES[name]
    model = case.converted(rho=0.5, layers=layers)
    expected = sampled(model, case.batch())
    model.save_pretrained(tmp_path / "model")
    babn.save_adapter(model, tmp_path / "belief")

    whole = babn.load(tmp_path / "model")
    onto_base = babn.load_adapter(case.model(), tmp_path / "belief")

    for loaded in (whole, onto_base):
        assert torch.equal(sampled(loaded, case.batch()), expected)
        assert str(babn.inspect(loaded)) == str(babn.inspect(model))


def test_files_from_before_the_choice_still_load(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = case.converted(rho=0.5)
    babn.save_adapter(model, tmp_path)
    described = json.loads((tmp_path / "belief.json").read_text())
    del described["kept"], described["rule"]["layers"]
    (tmp_path / "belief.json").write_text(json.dumps(described))
    weights = tmp_path / "belief.safetensors"
    save_file(load_file(weights), weights)  # without the description that later files hold too
    loaded = babn.load_adapter(case.model(), tmp_path)
    assert torch.equal(sampled(loaded, case.batch()), sampled(model, case.batch()))


def test_beliefs_are_refused_by_a_model_without_those_layers(tmp_path: Path) -> None:
    babn.save_adapter(CASES["llama"].converted(layers="0,1,2"), tmp_path)
    with pytest.raises((MismatchError, ConfigError), match="self_attn"):
        babn.load_adapter(llama(2), tmp_path)


def test_inspection_says_what_the_choice_costs() -> None:
    config = babn.BeliefConfig.pairs(max_length=16, layers="last:1")
    found = babn.inspect(CASES["llama"].model(), config=config)
    everything = babn.inspect(CASES["llama"].model(), config=babn.BeliefConfig.pairs(max_length=16))
    assert found.parameters_added * 3 == everything.parameters_added
    assert found.share == pytest.approx(1 / 3) and everything.share == 1
    assert "'last:1' takes 1 of 3 attention calls (33%)" in str(found)
    assert "model.layers.0.self_attn, model.layers.1.self_attn" in str(found)
    assert "Layers:" not in str(everything)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("7", r"'7' matches no attention call. There are model.layers.\*.self_attn \(0 to 2\)"),
        ("last:1,*.cross", r"layers='last:1,\*.cross': '\*.cross' matches no attention call"),
    ],
)
def test_a_choice_of_nothing_is_refused(layers: str, message: str) -> None:
    model = CASES["llama"].model()
    with pytest.raises(ConfigError, match=message):
        babn.convert(model, babn.BeliefConfig.pairs(layers=layers))
    assert not hasattr(model, "babn")


def test_layers_that_keep_eager_attention_are_not_made_causal() -> None:
    settings = GROUPED | {"num_attention_heads": 4, "question_token_id": 3}
    model = enlarge(hf.SplinterModel(hf.SplinterConfig(**settings)).eval(), 0.15)
    batch = {"input_ids": CASES["bert"].batch()["input_ids"]}  # no padding, so there is no mask
    expected = outputs(model, batch)

    babn.convert(model, babn.BeliefConfig.pairs(max_length=64, sigma=0.0, layers="first:1"))

    assert model.config._attn_implementation == "babn"
    assert gap(expected, outputs(model, batch)) < 1e-5
