"""The code in README and CONTRIBUTING runs, on a tiny model in place of the one from the hub."""

import inspect
import re
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from babn.cli._app import commands
from babn.experiments.config_files import find_config
from babn.experiments.grids import read_grid

ROOT = Path(__file__).parents[1]


def python_blocks(document: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL))


def save_tiny_albert(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "the", "plot", "was", "thin", "a", "joy"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.save_pretrained(folder)
    config = transformers.AlbertConfig(
        vocab_size=8,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    transformers.AlbertForSequenceClassification(config).save_pretrained(folder)


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_albert(tmp_path / "albert")
    monkeypatch.chdir(tmp_path)
    code = python_blocks("README.md").replace("albert/albert-base-v2", str(tmp_path / "albert"))

    exec(compile(code, "README.md", "exec"), {})

    printed = capsys.readouterr().out
    assert "albert.encoder.albert_layer_groups.*.albert_layers.*.attention/1" in printed
    assert (tmp_path / "runs/belief/belief.safetensors").exists()


def test_the_example_in_contributing_runs() -> None:
    exec(compile(python_blocks("CONTRIBUTING.md"), "CONTRIBUTING.md", "exec"), {})


def test_every_link_inside_the_documents_leads_somewhere() -> None:
    for document in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/attacks.md",
        "docs/experiments.md",
        "docs/gotchas.md",
        "docs/posterior.md",
        "docs/translation.md",
        "docs/vqa.md",
    ):
        path = ROOT / document
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
            assert (path.parent / link).exists(), f"{document}: {link}"


def toml_blocks(document: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_configurations_in_the_documents_are_real(tmp_path: Path) -> None:
    config, grid = toml_blocks("docs/experiments.md")
    built_in = find_config("table1/mrpc-belief")
    assert config == built_in.read_text()
    (tmp_path / "grid.toml").write_text(grid)
    assert len(read_grid(tmp_path / "grid.toml").jobs({})) == 3 * 2 * (2 + 4)


def test_every_command_in_the_documents_exists() -> None:
    names = ("attacks", "experiments", "translation", "vqa")
    for document in ("README.md", *(f"docs/{name}.md" for name in names)):
        text = (ROOT / document).read_text()
        blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
        for command, options in re.findall(r"^babn (\w+)([^#\n]*)", blocks, re.MULTILINE):
            known = inspect.signature(dict(commands())[command]).parameters
            for option in re.findall(r"--([a-z-]+)", options):
                assert {option.replace("-", "_"), f"{option}_"} & set(known), (command, option)
