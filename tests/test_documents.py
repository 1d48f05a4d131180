"""What the documents say is so: code runs, links lead somewhere, commands exist."""

import doctest
import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest
import transformers
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

import babn
from babn.cli._app import commands
from babn_paper.experiments.config_files import find_config
from babn_paper.experiments.grids import read_grid

ROOT = Path(__file__).parents[1]


DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "RESULTS.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]


LONG = ("docs/uncertainty.md", "docs/scale.md")
"""Pages whose code takes seconds; it runs in `make test-all`."""


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def python_code(document: str) -> str:
    """The blocks of a page, one after the other, but for those that are doctests."""
    return "\n".join(b for b in blocks(document, "python") if not b.startswith(">>>"))


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


@pytest.fixture(scope="module")
def tiny_albert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "albert"
    save_tiny_albert(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in LONG else ())
        for name in DOCUMENTS
        if python_code(name)
    ],
)
def test_the_code_of_a_page_runs(
    document: str, tiny_albert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("babn.demo.classifier.minilm_folder", lambda: tiny_albert)
    code = python_code(document).replace("albert/albert-base-v2", str(tiny_albert))
    names: dict[str, object] = {}
    exec(compile(code, document, "exec"), names)
    if document == "README.md":
        assert code == python_code(document)  # only the encoder is a smaller one
        assert names["prediction"].probs.shape == (2, 16)  # type: ignore[attr-defined]
        assert Path("view.html").exists() and Path("runs/belief/belief.safetensors").exists()


def test_the_readme_has_two_screens_and_a_small_picture() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    picture = next(line for line in lines if line.startswith("!["))
    assert (ROOT / picture.rpartition("(")[2].rstrip(")")).stat().st_size < 100_000
    first, *_ = (i for i, line in enumerate(lines) if line.startswith("```python"))
    code = lines[first + 1 : lines.index("```", first)]
    assert len([line for line in code if line and "import" not in line]) <= 10
    assert lines.index(picture) < first < next(i for i, x in enumerate(lines) if x.startswith("|"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_a_converted_model(
    tiny_albert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join([python_code("docs/train.md"), *blocks("docs/train.md", "py")])
    names: dict[str, object] = {}
    exec(
        compile(code.replace("albert/albert-base-v2", str(tiny_albert)), "train.md", "exec"), names
    )
    trainer = names["trainer"]
    assert trainer.global_step == 2  # type: ignore[attr-defined]
    assert {"loss", "kl"} <= set(trainer.logged_metrics)  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", [n for n in DOCUMENTS if ">>>" in (ROOT / n).read_text()])
def test_the_answers_on_a_page_are_right(document: str) -> None:
    failed, tried = doctest.testfile(str(ROOT / document), module_relative=False)
    assert tried and not failed


def slug(heading: str) -> str:
    """The anchor that the site gives to a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors(document: Path) -> set[str]:
    text = document.read_text()
    for included in re.findall(r'^--8<-- "([^":]+)', text, re.MULTILINE):
        text += (ROOT / included).read_text()
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_inside_the_documents_leads_somewhere(document: str) -> None:
    path = ROOT / document
    prose = re.sub(r"^    .*$", "", path.read_text(), flags=re.MULTILINE)  # without formulas
    references = re.findall(r"^\[[\w-]+\]: (?!http)(\S+)$", prose, flags=re.MULTILINE)
    for link in [*re.findall(r"\]\((?!http)([^)]+)\)", prose), *references]:
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def pages_of(entry: object) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages_of(part)]  # type: ignore[attr-defined]


def test_the_navigation_has_every_page_once() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = pages_of(settings["nav"])
    assert len(listed) == len(set(listed))
    assert {f"docs/{page}" for page in listed} == {d for d in DOCUMENTS if d.startswith("docs/")}


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/api/babn.md").read_text()
    listed = re.findall(r"^::: babn\.(\w+)$", page, re.MULTILINE)
    packages = {"distributions", "errors", "metrics", "plots"}  # have pages of their own
    assert sorted(listed) == sorted(set(babn.__all__) - packages)
    assert all((ROOT / f"docs/api/{name}.md").exists() for name in packages)


def test_tables_in_the_documents_are_what_their_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "tools/write_pages.py"))
    pages: dict[str, set[str]] = {}
    for page, name, text in script["blocks"]():
        pages.setdefault(page, set()).add(name)
        assert script["block"](name, text) in (ROOT / page).read_text(), (page, name)
    for page, names in pages.items():
        marked = re.findall(r"^<!-- /(.+) -->$", (ROOT / page).read_text(), re.MULTILINE)
        assert sorted(marked) == sorted(names), page


def test_the_page_of_results_is_short() -> None:
    lines = (ROOT / "RESULTS.md").read_text().splitlines()
    assert len(lines) <= 200
    assert all(len(line) <= 130 for line in lines if not line.startswith("|"))


@pytest.mark.thorough
def test_the_figures_of_settings_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["plot_settings.py", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "tools/plot_settings.py"), run_name="__main__")
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (ROOT / "docs/figures").glob("settings_*.png")}


def test_the_configurations_in_the_documents_are_real(tmp_path: Path) -> None:
    config, grid = blocks("docs/experiments.md", "toml")
    built_in = find_config("table1/mrpc-belief")
    assert config == built_in.read_text()
    (tmp_path / "grid.toml").write_text(grid)
    assert len(read_grid(tmp_path / "grid.toml").jobs({})) == 3 * 2 * (2 + 4)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_in_the_documents_exists(document: str) -> None:
    shown = "\n".join(blocks(document, "console"))
    for command, options in re.findall(r"^babn ([\w-]+)([^#\n]*)", shown, re.MULTILINE):
        known = inspect.signature(dict(commands())[command]).parameters
        for option in re.findall(r"--([a-z-]+)", options):
            assert {option.replace("-", "_"), f"{option}_"} & set(known), (command, option)
    for script in re.findall(
        r"^python ((?:benchmarks|examples|paper|tools)/\S+)", shown, re.MULTILINE
    ):
        assert (ROOT / script).exists(), script
    for grid in re.findall(r"paper/sweeps/[\w-]+\.toml", (ROOT / document).read_text()):
        assert (ROOT / grid).exists(), grid


def test_every_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        shown = "\n".join(blocks(document, "console"))
        assert set(re.findall(r"^make ([a-z-]+)", shown, re.MULTILINE)) <= targets
