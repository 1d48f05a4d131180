"""The comparisons on images and text: models, measures, and trials of every cell."""

import gzip
import math
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import choosing_images
import choosing_lm
import choosing_results
import from_scratch_results
import numpy as np
import pytest
import text_data
import token_scores
import torch
from from_scratch import train
from image_data import Images, normalized, synthetic
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

import babn
from babn_paper.method_comparison.example_scores import Scores


def test_vision_transformer() -> None:
    model = choosing_images.build(False, "cpu")
    width, layers, patch = 128, 5, 4 * 4 * 3
    layer = 4 * (width * width + width) + 2 * (width * width + width) + 4 * width
    ends = (patch + 1) * width + 66 * width + 2 * width + 10 * (width + 1)
    assert sum(p.numel() for p in model.parameters()) == layers * layer + ends == 514_186


@pytest.mark.thorough
def test_training_learns_and_anneals_the_kl() -> None:
    torch.manual_seed(0)
    images, config = synthetic(200, 0), babn.BeliefConfig()
    model = babn.convert(choosing_images.build(True, "cpu"), config)
    weights = []
    model.register_forward_pre_hook(lambda *_: weights.append(babn.get_kl_weight(model)))
    train(model, lambda: choosing_images.epoch(images, 50, False), 60, 1e-2)
    assert weights[0] == 0
    assert weights == sorted(weights)
    assert weights[-1] == pytest.approx(config.kl_weight)
    probs = predicted(model, synthetic(100, 1))
    assert (probs.argmax(-1) == synthetic(100, 1).labels).double().mean() > 0.6


def predicted(model: nn.Module, images: Images) -> Tensor:
    with torch.no_grad():
        return model.eval()(pixel_values=normalized(images.pixels)).logits.softmax(-1)


@pytest.mark.thorough
def test_label_smoothing_lowers_confidence() -> None:
    images, confidence = synthetic(200, 0), []
    for smoothing in (0.0, 0.3):
        torch.manual_seed(0)
        model = choosing_images.build(True, "cpu")
        train(model, lambda: choosing_images.epoch(images, 50, False), 60, 1e-2, smoothing)
        confidence.append(float(predicted(model, images).amax(-1).mean()))
    assert confidence[1] < confidence[0] - 0.1


def test_all_methods_are_compared_once() -> None:
    names = choosing_images.NAMES
    assert len(names) == len(set(names)) == 13
    found = [method.name for method in choosing_images.methods(names, 3)]
    missing = {"Laplace"} if find_spec("laplace") is None else set()
    wanted = {each for name in set(names) - missing for each in (name, f"{name} + TS")}
    assert set(found) == wanted


def run_images(names: Sequence[str], folder: Path, seeds: str = "0") -> None:
    command = f"--quick --seeds {seeds} --epochs 1 --batch 20 --device cpu --out {folder} --methods"
    args = choosing_images.arguments().parse_args([*command.split(), *names])
    args.weights = folder / "weights"
    choosing_images.run(args)
    shutil.rmtree(folder / "vit-cifar10/claims", ignore_errors=True)


@pytest.mark.thorough
def test_images_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_images(["deterministic", "label smoothing"], tmp_path, "0 1")
    results = choosing_results.collect([tmp_path / "vit-cifar10"])
    task = results["tasks"]["cifar10"]
    assert task["settings"]["images"] == 60
    assert len(task["runs"]) == 8
    parts = task["runs"][0]["measures"]
    assert list(parts) == ["test", "corrupted 1"]
    assert {"accuracy", "NLL", "ECE", "MCE", "outside AUROC", "outside FPR95"} <= set(parts["test"])
    monkeypatch.setitem(from_scratch_results.DETAILS, "cifar10", {"MCE": ("test", "MCE")})
    shown = "".join(from_scratch_results.texts([results]).values())
    assert shown.count("| label smoothing + TS") == 2
    assert "shift NLL" in shown
    assert "random-feature GP attention" in shown
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*-0.json")}
    run_images(["deterministic", "label smoothing"], tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*-0.json")}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::babn.errors.BabnWarning")
def test_every_method_on_images(tmp_path: Path) -> None:
    run_images(choosing_images.NAMES, tmp_path)
    assert not (tmp_path / "vit-cifar10/errors.txt").exists()
    found = choosing_results.collect([tmp_path / "vit-cifar10"])["tasks"]["cifar10"]["runs"]
    wanted = [method.name for method in choosing_images.methods(choosing_images.NAMES, 2)]
    assert sorted(run["method"] for run in found) == sorted(wanted)


def test_settings_are_not_chosen_on_test_images() -> None:
    args = choosing_images.arguments().parse_args(["--quick", "--out", "x"])
    args.device = "cpu"
    train, test, _ = choosing_images.load(args)
    problem = choosing_images.problem(train, args)
    known = {row.numpy().tobytes() for row in choosing_images.normalized(train.pixels)}
    parts = [
        {row.numpy().tobytes() for batch in part for row in batch["pixel_values"]}
        for part in (problem.training, problem.development)
    ]
    assert parts[0] | parts[1] == known
    assert not parts[0] & parts[1]
    assert not known & {row.numpy().tobytes() for row in choosing_images.normalized(test.pixels)}


def test_maximum_calibration_error() -> None:
    torch.manual_seed(0)
    confidence = torch.rand(500).double()
    correct = (torch.rand(500) < 0.6).double()
    scores = Scores(correct, confidence, confidence, confidence, confidence[:0])
    bins = np.digitize(confidence.numpy(), np.arange(1, 10) / 10, right=True)
    gaps = [float((confidence - correct)[torch.from_numpy(bins == i)].mean()) for i in range(10)]
    assert scores.measures()["MCE"] == pytest.approx(max(map(abs, gaps)))


WORDS = 11


@pytest.fixture
def cut() -> Tensor:
    return torch.randint(WORDS, (10, 33), generator=torch.Generator().manual_seed(0))


def draw(ids: Tensor, samples: int = 3, scale: float = 2.0) -> Tensor:
    """Logits that know something of the next token."""
    generator = torch.Generator().manual_seed(int(ids.sum()))
    logits = torch.randn(samples, *ids.shape, WORDS, generator=generator)
    return scale * (logits + torch.nn.functional.one_hot(ids.roll(-1, 1), WORDS))


def test_token_scores(cut: Tensor) -> None:
    found = token_scores.token_scores(draw, cut)
    logits = torch.cat([draw(ids) for ids in cut.split(token_scores.AT_ONCE)], 1)[:, :, :-1]
    probs = logits.double().softmax(-1)
    mean, target = probs.mean(0).flatten(0, 1), cut[:, 1:].flatten()
    reference = log_loss(target, mean.numpy(), labels=list(range(WORDS)))
    assert float(found["nll"].mean()) == pytest.approx(reference, rel=1e-5)
    accuracy = (mean.argmax(-1) == target).double().mean()
    examples = token_scores.as_examples(found).measures()
    assert examples["accuracy"] == pytest.approx(float(accuracy))
    wrong = (mean.argmax(-1) != target).numpy()
    entropy = -(mean * mean.log()).sum(-1)
    assert examples["error AUROC"] == pytest.approx(roc_auc_score(wrong, entropy), abs=1e-4)
    expected = -(probs * probs.log()).sum(-1).mean(0).flatten()
    mutual = found["mi"].flatten()
    torch.testing.assert_close(mutual, entropy - expected, rtol=0, atol=1e-5)


def test_detection(cut: Tensor) -> None:
    one = token_scores.token_scores(draw, cut)
    other = token_scores.token_scores(lambda ids: draw(ids, scale=0.5), cut)
    found = token_scores.detection(one, other, samples=False)
    assert set(found) == {f"{m} by {s}" for m in ("AUROC", "FPR95") for s in ("NLL", "entropy")}
    means = [x["entropy"].numpy().reshape(-1, 16).mean(1) for x in (one, other)]
    truth = np.repeat([0, 1], len(means[0]))
    assert len(means[0]) == 20
    assert found["AUROC by entropy"] == pytest.approx(roc_auc_score(truth, np.concatenate(means)))


@pytest.mark.parametrize("temperature", [2**0.25, 2**-0.25])
def test_best_temperature(cut: Tensor, temperature: float) -> None:
    """Labels drawn from the model are predicted best at the temperature they were drawn at."""
    torch.manual_seed(0)
    cut = cut.repeat(20, 1)
    table = 2 * torch.randn(WORDS, WORDS)
    for place in range(1, cut.shape[1]):
        drawn = (table[cut[:, place - 1]] / temperature).softmax(-1).multinomial(1)
        cut[:, place] = drawn.squeeze(-1)
    found = token_scores.best_temperature(lambda ids: table[ids][None], cut)
    assert math.log2(found) == pytest.approx(math.log2(temperature), abs=1 / 15)


def test_texts_are_split_by_article(tmp_path: Path) -> None:
    articles = [f"Article {i} says number {i}.\nIt ends." for i in range(12)]
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(("\n\n".join(articles) + "\n\n").encode()))
    assert text_data.read_articles(path) == articles
    table = tmp_path / "talks.gz"
    table.write_bytes(gzip.compress("set\tde\ten\na\tGrüße an alle\tHello all\n".encode()))
    talks = text_data.read_talks(table)
    assert talks == (["Hello all"], ["Grüße an alle"])
    tokens, tokenizer = text_data.tokenized(articles, talks, 3, 300)
    parts = [tokenizer.decode(tokens[name]) for name in ("train", "development", "test")]
    assert sorted(sum(text in part for part in parts) for text in articles) == [1] * 12
    assert [part.count("It ends.") for part in parts] == [6, 3, 3]
    assert tokenizer.decode(tokens["foreign"]).startswith("Grüße an alle")
    assert tokens["starts"][tokenizer.token_to_id("Ġ")]
    assert not tokens["starts"][tokenizer.token_to_id("e")]


def test_shuffled_words_stay_whole() -> None:
    starts = np.array([True, False, True, False])
    cut = torch.tensor([[0, 1, 2, 3, 1, 0, 2, 1] * 4])
    found = text_data.shuffled(cut, starts)
    assert not torch.equal(found, cut)
    assert torch.equal(found, text_data.shuffled(cut, starts))
    assert sorted(words(found[0].tolist())) == sorted(words(cut[0].tolist()))


def words(row: list[int]) -> list[str]:
    return "".join(f" {x}" if x in (0, 2) else str(x) for x in row).split()


def run_lm(names: Sequence[str], folder: Path) -> dict[str, Any]:
    command = f"--quick --seeds 0 --steps 2 --device cpu --out {folder} --methods"
    args = choosing_lm.arguments().parse_args([*command.split(), *names])
    args.weights = folder / "weights"
    choosing_lm.run(args)
    shutil.rmtree(folder / "gpt2-lm_text/claims", ignore_errors=True)
    return choosing_results.collect([folder / "gpt2-lm_text"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        ("deterministic", "BABN"),
        pytest.param(choosing_lm.NAMES, marks=pytest.mark.thorough, id="all"),
    ],
)
def test_lm_quick(tmp_path: Path, names: Sequence[str]) -> None:
    results = run_lm(names, tmp_path)
    runs = results["tasks"]["lm_text"]["runs"]
    wanted = {each for name in names for each in (name, f"{name} + TS")}
    assert {record["method"] for record in runs} == wanted
    for record in runs:
        assert set(record["measures"]) == {"test", "shift"}
        assert 0 <= record["measures"]["test"]["German AUROC by NLL"] <= 1
        assert record["cost"]["trainings"] == (5 if "ensemble" in record["method"] else 1)
    assert "German by MI" in "".join(from_scratch_results.texts([results]).values())
    assert run_lm(names, tmp_path)["tasks"]["lm_text"]["runs"] == runs
