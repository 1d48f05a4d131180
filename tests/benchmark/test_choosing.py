"""The benchmark of methods on texts: a tiny run, its collection and the page made of it."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import choosing
import choosing_page
import choosing_results
import pytest
import write_pages
from transformers import BertConfig, BertModel

from babn.text import word_tokenizer
from babn_paper.method_comparison.method_catalogue import GROUPS, is_installed

METHODS = ["deterministic", "deterministic + TS", "BABN, not trained + TS"]
WORDS = ["warm", "bright", "lovely", "grim", "stale", "cold", "soup", "room", "film"]


def sentence(number: int, label: int) -> str:
    return " ".join(WORDS[(number * step) % 3 + 3 * label] for step in (1, 2, 4)) + " film"


def write(path: Path, columns: list[str], rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in [columns, *rows])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = [[str(i % 2), sentence(i, i % 2)] for i in range(60)]
    intents = [[("eat", "see")[i % 2], sentence(i, i % 2)] for i in range(60)]
    for part in ("train", "dev", "test"):
        write(folder / f"clinc150/{part}.tsv.gz", ["label", "sentence"], intents)
    write(folder / "clinc150/oos_test.tsv.gz", ["label", "sentence"], [["oos", "soup"]] * 20)
    write(folder / "sst2/train.tsv.gz", ["label", "sentence"], rows * 12)
    write(folder / "sst2/dev.tsv.gz", ["label", "sentence"], rows)
    for name in ("yelp", "imdb", "ag"):
        path = folder / f"attack_resources/textfooler_{name}.tsv.gz"
        write(path, ["label", "text"], [[label, f"{text} room"] for label, text in rows])
    pairs = [[label, text, sentence(i + 1, i % 2)] for i, (label, text) in enumerate(rows)]
    for name in ("mrpc/train", "mrpc/dev", "rte/dev"):
        write(folder / f"{name}.tsv.gz", ["label", "sentence1", "sentence2"], pairs * 12)
    write(folder / "qqp/dev.tsv.gz", ["label", "question1", "question2"], pairs)
    named = [[list(choosing.NLI)[i % 3], *texts] for i, (_, *texts) in enumerate(pairs)]
    for name in ("snli/train_subset", "snli/dev", "snli/test", "mnli/dev_matched"):
        write(folder / f"{name}.tsv.gz", ["label", "premise", "hypothesis"], named)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = word_tokenizer([" ".join(WORDS)])
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=32, **sizes)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(
    data: Path, encoder: Path, out: Path, *more: str, task: str, methods: list[str], seed: str = "0"
) -> None:
    """The benchmark with few texts and samples."""
    where = ["--model", str(encoder), "--data", str(data), "--out", str(out), "--device", "cpu"]
    few = ["--quick", "--limit", "40", "--epochs", "2", "--lr", "3e-3"]
    choosing.main([*where, *few, *more, "--tasks", task, "--seeds", seed, "--methods", *methods])


@pytest.fixture(scope="module")
def found(data: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The collected results of two tasks and seeds."""
    out = tmp_path_factory.mktemp("runs")
    for task in ("clinc150", "sst2"):
        for seed in ("0", "1"):
            run(data, encoder, out, "--features", task=task, seed=seed, methods=METHODS)
    return choosing_results.collect(sorted(out.iterdir()))


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["mrpc", "snli"])
def test_other_tasks_run(task: str, data: Path, encoder: Path, tmp_path: Path) -> None:
    run(data, encoder, tmp_path, task=task, methods=METHODS[:2])
    record = json.loads((tmp_path / f"tiny-{task}/deterministic-0.json").read_text())
    assert list(record["measures"]) == ["test", {"mrpc": "QQP", "snli": "MNLI"}[task]]
    assert 0 <= record["measures"]["test"]["outside AUROC"] <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("group", list(GROUPS))
def test_every_method_runs(group: str, data: Path, encoder: Path, tmp_path: Path) -> None:
    run(data, encoder, tmp_path, task="clinc150", methods=[group])
    written = {
        json.loads(p.read_text())["method"] for p in (tmp_path / "tiny-clinc150").glob("*-0.json")
    }
    assert written == {method.name for method in GROUPS[group] if is_installed(method)}


@pytest.mark.thorough
def test_runs_are_collected_with_settings_and_versions(found: dict[str, Any]) -> None:
    assert found["model"] == "tiny" and "torch" in found["versions"]
    assert list(found["tasks"]) == ["clinc150", "sst2"]
    sst2 = found["tasks"]["sst2"]
    assert sst2["settings"] == {"lr": 3e-3, "epochs": 2, "batch_size": 64, "texts": 40}
    assert len(sst2["runs"]) == len(METHODS) * 2
    assert set(sst2["runs"][0]["measures"]) == {"test", "restaurants", "whole reviews"}
    json.dumps(found)


@pytest.mark.thorough
def test_the_page_has_tables_ranks_and_advice(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing_page, "FEWEST", 2)
    assert choosing_results.methods(choosing_results.cells([found])) == METHODS
    [(path, text)] = choosing_page.pages([found])
    assert path == "docs/choosing.md"
    lines = text.splitlines()
    assert lines[0] == "# Choosing a method"
    first = next(line for line in lines if line.startswith("- "))
    assert "ttention noise" in first and ("**" in first or "tie in" in first)
    for method in METHODS:
        assert f"| {method}" in text or f"| **{method}" in text
    for title in ("You have a trained model", "Your texts are long", "You need a guarantee"):
        assert f"## {title}" in text
    assert "shift NLL" in text and "tiny on SST-2: 2 seeds" in text
    drawn = choosing_page.draw([found], tmp_path)
    named = [line.partition("(figures/")[2].rstrip(")") for line in lines if line.startswith("![")]
    assert [path.name for path in drawn] == named == ["choosing_nll.png", "choosing_outside.png"]


def test_without_results_there_is_no_page(tmp_path: Path) -> None:
    assert list(choosing_page.pages(choosing_page.files(tmp_path))) == []


@pytest.mark.thorough
def test_committed_page_is_what_its_script_writes() -> None:
    for page, text in choosing_page.pages():
        assert (write_pages.ROOT / page).read_text() == text


@pytest.mark.slow  # needs laplace-torch
def test_stored_features_give_laplace(found: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """With the features of another machine, where laplace-torch was missing."""
    assert found
    folders = sorted({p.parent for p in data.parents[0].rglob("features-0.safetensors")})
    choosing.laplace(folders[:1])
    written = {path.name for path in folders[0].glob("Laplace*.json")}
    assert "Laplace-0.json" in written and "Laplace-TS-0.json" in written


def runs(method: str, values: list[float]) -> list[dict[str, Any]]:
    return [
        {"method": method, "seed": seed, "measures": {"test": {"NLL": value}}}
        for seed, value in enumerate(values)
    ]


def test_ranks_are_means_over_cells_of_means_over_seeds() -> None:
    names = [method.name for method in GROUPS["post-hoc"]][:3]
    first = [*runs(names[0], [1, 3]), *runs(names[1], [2.5, 2.5]), *runs(names[2], [4, 4])]
    second = [*runs(names[0], [3, 3]), *runs(names[1], [1, 1]), *runs(names[2], [3, 3])]
    ranks, blocks = choosing_results.mean_ranks(
        {("m", "a"): first, ("m", "b"): second}, "NLL", names
    )
    assert blocks == 2
    assert ranks == {names[0]: (1 + 2.5) / 2, names[1]: (2 + 1) / 2, names[2]: (3 + 2.5) / 2}


def test_methods_that_predict_one_class_have_failed() -> None:
    accuracies = {
        "a": [0.80, 0.79, 0.81],
        "of two classes": [0.68, 0.68, 0.68],
        "of many classes": [0.01, 0.02, 0.01],
        "worse": [0.70, 0.68, 0.68],
    }
    runs = [
        {"method": method, "seed": seed, "measures": {"test": {"accuracy": value}}}
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    failed = choosing_results.failed_methods({("m", "a"): runs}, list(accuracies))
    assert failed == {"of two classes", "of many classes"}


def test_critical_difference_is_that_of_the_literature() -> None:
    """Demšar 2006: q = 2.728 for 5 methods; a difference of 1.25 for 4 methods on 14 data sets."""
    assert choosing_results.nemenyi(4, 14) == pytest.approx(1.25, abs=0.01)
    assert choosing_results.nemenyi(5, 30) == pytest.approx(2.728 * math.sqrt(30 / 180), abs=1e-3)


def test_noise_is_that_of_paired_seeds() -> None:
    best = {0: 1.0, 1: 2.0, 2: 3.0}
    assert not choosing_results.is_within_noise({0: 1.1, 1: 2.1001, 2: 3.1}, best)
    assert choosing_results.is_within_noise({0: 1.1, 1: 1.9, 2: 3.05}, best)
    assert choosing_results.half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3), 1e-3)
