"""Ensembles of several seeds, from the saved predictions of their runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiments import tiny

from babn.evaluation.predictions import Evaluation
from babn_paper.experiments.engines import Job
from babn_paper.experiments.evaluation import measure
from babn_paper.experiments.records import collect
from babn_paper.experiments.run_folder import RunFolder, write_json
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.text_task import TextPredictions

pytestmark = pytest.mark.thorough


PARTS = ("test", "out", "dev")


def finished(folder: Path, seed: int) -> tuple[Job, dict[str, torch.Tensor]]:
    """A run that is done, with random predictions, and their logits."""
    experiment = tiny(task="nli", method="softmax", seed=seed)
    task, logits, predictions = find_task("nli", {}), {}, {}
    place = RunFolder(folder / "nli-softmax" / f"seed-{seed}")
    place.begin(experiment)
    for number, part in enumerate(PARTS):
        torch.manual_seed(10 * seed + number)
        logits[part] = 2 * torch.randn(40, 3)
        found = Evaluation.of_logits("softmax", logits[part], torch.arange(40) % 3, seed=seed)
        predictions[part, "mean"] = TextPredictions(found, task.scores)
        predictions[part, "mean"].save(place.predictions / f"{part}-mean")
    about = {"scores": [], "parameters": 1, "steps": 1, "seconds_per_step": None}
    write_json(place.results, {"measures": measure(task, predictions), **about})
    return Job(experiment, place.path), logits


def test_an_ensemble_has_measures_of_each_domain_and_of_both_together(tmp_path: Path) -> None:
    made = [finished(tmp_path, seed) for seed in range(3)]
    *_, ensemble = collect([job for job, _ in made])
    assert ensemble.label == "nli-ensemble" and ensemble.results["members"] == 3
    found: dict[str, Any] = ensemble.of("out", "sampled")
    probs = torch.stack([logits["out"].softmax(-1) for _, logits in made]).mean(0)
    right = probs.argmax(-1) == torch.arange(40) % 3
    assert found["accuracy"] == right.double().mean()
    assert found["NLL + TS (in domain)"] < found["NLL"]
    assert {"OOD AUROC (entropy)", "OOD AUROC (mutual information)"} < {*found}


def test_there_is_no_ensemble_of_runs_without_predictions(tmp_path: Path) -> None:
    jobs = [finished(tmp_path, seed)[0] for seed in range(2)]
    assert len(collect(jobs)) == 3
    RunFolder(jobs[0].folder).predictions.rename(tmp_path / "elsewhere")
    assert len(collect(jobs)) == 2
