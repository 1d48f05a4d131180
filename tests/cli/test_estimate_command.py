"""`babn estimate` by name, folder and sizes."""

import json
from pathlib import Path

import pytest
import transformers as hf
from test_command_line import run

import babn
from models import GROUPED


def test_the_command_prints_a_line_for_each_method() -> None:
    code, output = run("estimate", "llama-2-7b", "--length", "32768", "--layers", "last:4")
    assert code == 0
    assert "6.74B parameters" in output and "4 of 32 layers" in output
    for method in ("softmax", "BAM", "BABN per key", "BABN per pair, keys", "BABN per pair, heads"):
        assert method in output


def test_the_command_reads_a_configuration(tmp_path: Path) -> None:
    config = hf.LlamaConfig(**GROUPED, architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    given = ("--length", "64", "--upward", "heads", "--train", "--json")
    code, by_model = run("estimate", str(tmp_path), *given)
    assert code == 0
    found = {method["method"]: method for method in json.loads(by_model)}
    heads, default = found["BABN per pair, heads"], found["BABN per key"]
    methods = babn.BeliefConfig.pairs(upward="heads"), babn.BeliefConfig()
    for estimated, method in zip((heads, default), methods, strict=True):
        model = babn.convert(hf.LlamaForCausalLM(config), method)
        assert estimated["parameters_added"] == sum(p.numel() for p in model.babn.parameters())
    assert "upward path" not in default["flops"]
    assert heads["flops"].keys() >= {"linear", "attention", "upward path", "total"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-2-7b", "--upward", "down"), "Give keys or heads"),
        (("./nothing/there",), "does not exist"),
        (("llama-2-7b", "--layers", "last:0"), "layers='last:0' is invalid"),
    ],
)
def test_impossible_arguments_are_refused(arguments: tuple[str, ...], message: str) -> None:
    code, output = run("estimate", *arguments)
    assert code == 2
    assert message in output
