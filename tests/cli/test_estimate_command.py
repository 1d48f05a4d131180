"""`babn estimate` by name and folder."""

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
    code, output = run("estimate", str(tmp_path), "--length", "64")
    assert code == 0
    model = babn.convert(hf.LlamaForCausalLM(config))
    added = sum(parameter.numel() for parameter in model.babn.parameters())
    (line,) = [line.split() for line in output.splitlines() if line.startswith("BABN per key")]
    assert line[3] == str(added)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-2-7b", "--length", "0"), "length=0 is invalid"),
        (("llama-2-7b", "--batch", "0"), "batch=0 is invalid"),
        (("llama-2-7b", "--queries", "-1"), "queries=-1 is invalid"),
        (("./nothing/there",), "does not exist"),
        (("llama-2-7b", "--layers", "last:0"), "layers='last:0' is invalid"),
    ],
)
def test_impossible_arguments_are_refused(arguments: tuple[str, ...], message: str) -> None:
    code, output = run("estimate", *arguments)
    assert code == 2
    assert message in output
