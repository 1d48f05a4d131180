"""The figures of two domains name every method, in titles and legends that fit."""

from pathlib import Path

import domain_figures
import pytest
import torch

from babn import plots
from babn.evaluation.predictions import Evaluation
from babn.prediction.result import Prediction
from plot_checks import answers, clipped, texts

pytestmark = pytest.mark.thorough


def save_runs(runs: Path) -> None:
    """Predictions of two seeds for both domains."""
    for number, (name, (settings, mode)) in enumerate(domain_figures.METHODS.items()):
        for seed in (0, 1):
            for part in ("dev", "out"):
                probs, labels = answers(10 * number + seed)
                logits = torch.stack([probs.log()] * (1 if mode == "mean" else 2))
                folder = runs / f"nli-{settings}" / f"seed-{seed}" / "answers" / f"{part}-{mode}"
                Evaluation(name, Prediction(logits), labels).save(folder, overwrite=True)


def test_all_methods_are_named(tmp_path: Path) -> None:
    save_runs(tmp_path)
    found, labels = domain_figures.methods(tmp_path, "nli", (0, 1))
    names = {domain_figures.SCALED, "ensemble of 2", *domain_figures.METHODS}
    assert set(found) == names and len(labels) == 400
    diagram = plots.reliability_diagram(found, labels)
    assert names <= {text.replace("\n", " ") for text in texts(diagram)}
    curves = plots.risk_coverage(found, labels)
    assert names <= {text.rpartition(" (")[0] for text in texts(curves)}
    assert not clipped(diagram) and not clipped(curves)


def test_a_task_without_runs_has_no_figure(tmp_path: Path) -> None:
    assert domain_figures.methods(tmp_path, "nli", (0,))[0] == {}
