"""`babn inspect` on saved models, and the weightless models behind it."""

import resource
from pathlib import Path
from typing import Any

import pytest
import transformers
from test_command_line import run
from torch import nn

import babn
from babn.cli._inspection import inspection, outline
from babn_paper import models

TINY = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 40,
}


def tiny_bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**TINY))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    tiny_bert().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted")
    babn.convert(tiny_bert(), babn.BeliefConfig.pairs(max_length=40)).save_pretrained(path)
    return path


def test_prints_the_table_of_the_library(folder: Path) -> None:
    code, output = run("inspect", str(folder))
    assert code == 0
    assert output.rstrip() == str(babn.inspect(tiny_bert()))
    assert "BertForSequenceClassification can be converted" in output


@pytest.mark.parametrize(
    ("more", "config"),
    [
        ((), babn.BeliefConfig(rho=3.0, attention_dropout=True)),
        (
            ("noise_over=pairs", "upward=heads"),
            babn.BeliefConfig.pairs(rho=3.0, upward="heads", attention_dropout=True),
        ),
    ],
    ids=["keys", "pairs"],
)
def test_method_and_settings_are_used(
    more: tuple[str, ...], config: babn.BeliefConfig, folder: Path
) -> None:
    settings = ["rho=3", "attention_dropout=true", *more]
    found = inspection(str(folder), None, settings)
    assert found.config == config
    expected = babn.inspect(tiny_bert(), config=config)
    assert found == expected
    options = [word for each in settings for word in ("--set", each)]
    code, output = run("inspect", str(folder), *options)
    assert code == 0 and output.rstrip() == str(expected)


def test_layers_can_be_chosen(folder: Path) -> None:
    settings = ("--set", "layers=last:1")
    code, output = run("inspect", str(folder), *settings)
    assert code == 0
    assert "'last:1' takes 1 of 2 attention calls (50%)" in output
    found = inspection(str(folder), None, ["layers=last:1"])
    assert found.share == 0.5 and found.config.layers == "last:1"
    assert [call.path for call in found.kept] == ["bert.encoder.layer.0.attention.self"]
    code, output = run("inspect", str(folder), "--set", "layers=9")
    assert code == 2
    assert "'9' matches no attention call" in output and "(0 to 1)" in output


def test_settings_of_pairs_need_noise_over_pairs(folder: Path) -> None:
    code, output = run("inspect", str(folder), "--set", "upward=heads")
    assert code == 2
    message = " ".join(output.split())
    assert "upward='heads' is a setting of noise over pairs" in message
    assert "noise_over=pairs" in message


@pytest.mark.parametrize("method", ["belief", "bam", "softmax", "mc-dropout"])
def test_every_method(method: str, folder: Path) -> None:
    code, output = run("inspect", str(folder), "--method", method)
    assert code == 0
    assert f"method '{method}'" in output


def test_converted_folder_says_so(converted: Path) -> None:
    code, output = run("inspect", str(converted))
    assert code == 0
    assert "BertForSequenceClassification is converted" in output
    found = inspection(str(converted), None, [])
    assert found.converted and found.config.max_length == 40


def test_only_the_configuration_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert run("inspect", str(tmp_path))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "rho=-1"), "error: rho=-1.0 is invalid. Give a number"),
        (("--set", "rho=much"), "error: rho='much' is invalid. Give a number."),
        (("--set", "max_length=1.5"), "error: max_length='1.5' is invalid. Give a whole"),
        (("--set", "attention_dropout=no"), "Give true or false."),
        (("--set", "upward=sideways"), "error: upward='sideways' is invalid. Choose one of"),
        (("--set", "rho"), "error: --set rho is invalid. Write --set NAME=VALUE."),
        (("--set", "colour=red"), "error: BeliefConfig has no field colour"),
        (("--method", "magic"), "error: method='magic' is not known"),
    ],
)
def test_wrong_settings(
    arguments: tuple[str, ...], message: str, folder: Path, as_installed: None
) -> None:
    code, output = run("inspect", str(folder), *arguments)
    assert code == 2
    assert message in output
    assert output.count("\n") == 1


def test_settings_of_a_converted_folder_are_refused(converted: Path) -> None:
    code, output = run("inspect", str(converted), "--method", "bam")
    assert code == 2
    assert "is already converted" in output


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "gone", "does not exist"), (tmp_path, "config.json")):
        code, output = run("inspect", str(path))
        assert code == 2
        assert message in output
        assert output.count("\n") == 1


def test_damaged_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    code, output = run("inspect", str(tmp_path))
    assert code == 2
    assert "cannot be read" in output


def test_model_without_attention_is_an_error_of_one_line(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])
    config.save_pretrained(tmp_path)
    code, output = run("inspect", str(tmp_path))
    assert code == 2
    assert output.startswith("error: ")
    assert output.count("\n") == 1


FAMILIES = {
    "bert": transformers.BertConfig(**TINY),
    "gpt2": transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=40),
    "llama": transformers.LlamaConfig(**TINY),
    "t5": transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4
    ),
    "vit": transformers.ViTConfig(
        **{k: TINY[k] for k in list(TINY)[1:5]}, image_size=16, patch_size=8
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_outline_is_inspected_like_the_model(family: str) -> None:
    config = FAMILIES[family]
    expected = babn.inspect(transformers.AutoModel.from_config(config))
    assert babn.inspect(outline(config)) == expected


def test_outline_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = transformers.LlamaConfig(num_hidden_layers=2, architectures=["LlamaForCausalLM"])
    model = outline(config)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    weights = sum(p.numel() for p in model.parameters()) * 4 / 1024
    assert isinstance(model, transformers.LlamaForCausalLM)
    assert grown < weights / 4


def test_outline_leaves_torch_as_it_was() -> None:
    outline(FAMILIES["bert"])
    assert not nn.Linear(2, 2).weight.is_meta


def test_models_of_babn_are_known(tmp_path: Path) -> None:
    config = models.DecomposableConfig(vocab_size=20, embedding_size=8, hidden_size=8)
    models.DecomposableForSequenceClassification(config).save_pretrained(tmp_path)
    code, output = run("inspect", str(tmp_path))
    assert code == 0, output
    assert "network.premise.cross_attention" in output
