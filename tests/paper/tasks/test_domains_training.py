"""Tasks of two domains from built-in texts to results, with small models."""

import math
from pathlib import Path

import pytest
import torch

from babn_paper.experiments.evaluation import evaluate, remeasure
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.run import run
from babn_paper.tasks.domains import TASKS, DomainTask
from babn_paper.tasks.text_task import TextPredictions

pytestmark = pytest.mark.thorough

SAMPLES = 3
CALIBRATION = {"ECE-10 + TS (in domain)", "NLL + TS (in domain)"}
DETECTION = {"OOD AUROC (entropy)", "OOD FPR95 (entropy)"}
SAMPLED = "OOD AUROC (mutual information)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own."""
    monkeypatch.setenv("BABN_CACHE", str(tmp_path / "cache"))


def experiment(task: str, method: str) -> Experiment:
    return Experiment(
        task=task,
        model="small",
        method=method,
        data="builtin",
        steps=3,
        batch_size=8,
        learning_rate=1e-3,
        max_length=40,
        samples=SAMPLES,
    )


@pytest.mark.parametrize("method", ["softmax", "belief"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_tasks_train_answer_and_measure(task: DomainTask, method: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    results = run(experiment(task.name, method), folder)
    measures = results["measures"]
    assert list(measures) == ["test", "out", "dev"]
    modes = {"mean"} | ({"sampled"} if method == "belief" else set())
    classes = len(task.target.names)
    for part, by_mode in measures.items():
        assert by_mode.keys() >= modes
        for mode, found in by_mode.items():
            assert 0 <= found["accuracy"] <= 1
            assert all(math.isfinite(value) for value in found.values())
            assert (found.keys() >= CALIBRATION) == (part != "dev")
            assert (found.keys() >= DETECTION) == (part == "out")
            assert (SAMPLED in found) == (part == "out" and mode != "mean")
            predictions = task.load_predictions(folder / "predictions" / f"{part}-{mode}")
            logits = predictions.evaluation.prediction.sample_logits
            labels = [each.label for each in task.read("builtin", part).examples]
            assert logits.shape == (1 if mode == "mean" else SAMPLES, len(labels), classes)
            assert len(labels) == (12 if (task.name, part) == ("paraphrase", "out") else 24)
            assert predictions.evaluation.labels.tolist() == labels
    before = {part: {m: dict(f) for m, f in by.items()} for part, by in measures.items()}
    assert remeasure(folder)["measures"] == before


@pytest.mark.slow
def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    task = TASKS["commonsense"]
    run(experiment("commonsense", "belief"), tmp_path)
    first = [_logits(task, tmp_path, mode) for mode in ("mean", "sampled")]
    evaluate(tmp_path)
    again = [_logits(task, tmp_path, mode) for mode in ("mean", "sampled")]
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def _logits(task: DomainTask, folder: Path, mode: str) -> torch.Tensor:
    found: TextPredictions = task.load_predictions(folder / "predictions" / f"out-{mode}")
    return found.evaluation.prediction.sample_logits
