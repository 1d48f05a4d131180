"""Evaluates methods one after another, and saves the results of each."""

import dataclasses
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from babn import metrics
from babn.errors import BabnWarning
from babn.evaluation.decisions import fit_conformal
from babn.files import make_folder, read_object, replace_text
from babn.prediction.result import Prediction
from babn.progress import Progress
from babn.tensor_files import read_tensors, write_tensors
from babn_paper.method_comparison.example_scores import Scores
from babn_paper.method_comparison.interface import Fitted, Method, labels_of
from babn_paper.method_comparison.trained_models import SOFTMAX, Batches, Models, plain

COVERAGE = 0.95
"""Probability with which conformal sets contain the right class."""

OUTSIDE = "outside"
"""Name of the test set of out-of-domain examples, whose labels are ignored."""


@dataclass(frozen=True)
class Result:
    """A method with one seed.

    Attributes:
        method: Name of the method.
        seed: Seed of the training.
        measures: Measures by test set and name.
        scores: Scores of the examples, by test set.
        details: Settings, number of settings tried, and costs.
    """

    method: str
    seed: int
    measures: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, Scores]
    details: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Everything but the scores, for a JSON file."""
        return {
            "method": self.method,
            "seed": self.seed,
            **self.details,
            "measures": self.measures,
        }


def evaluate(method: Method, models: Models, seed: int, tests: Mapping[str, Batches]) -> Result:
    """Fits a method and predicts all test sets.

    Args:
        method: The method.
        models: The models that it is fitted to.
        seed: Seed of the training.
        tests: Labelled batches by the name of the test set; `"outside"` has no labels.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All samples give nearly", BabnWarning)
        return _evaluate(method, models, seed, tests)


def _evaluate(method: Method, models: Models, seed: int, tests: Mapping[str, Batches]) -> Result:
    fitted = method.fit(models, seed)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for batches in tests.values():
        fitted.predict(batches[:1])  # leaves the costs of first use out of the time
    began = time.perf_counter()
    found = {name: fitted.predict(batches) for name, batches in tests.items()}
    novelty = {}
    if fitted.novelty is not None and OUTSIDE in tests:
        novelty = {name: fitted.novelty(batches) for name, batches in tests.items()}
    seconds = time.perf_counter() - began
    memory = torch.cuda.max_memory_allocated() if cuda else None
    outside = found.pop(OUTSIDE, None)
    scores = {
        name: Scores.of(
            each, tests[name], outside, (novelty[name], novelty[OUTSIDE]) if novelty else None
        )
        for name, each in found.items()
    }
    measures = {name: each.measures() for name, each in scores.items()}
    for name, each in found.items():
        measures[name] |= _of_samples(each, scores[name], outside)
    for name, measured in _of_sets(found, tests).items():
        measures[name] |= measured
    details = {
        "settings": dict(fitted.settings),
        "tried": fitted.tried,
        "cost": _cost(fitted, models, seed)
        | {"seconds": seconds, "memory": memory, "lines": len(method.code.splitlines())},
    }
    return Result(method.name, seed, measures, scores, details)


def _cost(fitted: Fitted, models: Models, seed: int) -> dict[str, float]:
    """Number of trainings, their time relative to the deterministic one, and forward passes."""
    cost: dict[str, float] = {"trainings": len(fitted.trainings), "passes": fitted.passes}
    if not models.timed:
        return cost
    seconds = sum(models.seconds(*training) for training in fitted.trainings)
    return cost | {"training": seconds / models.seconds(SOFTMAX, seed)}


def _of_samples(found: Prediction, scores: Scores, outside: Prediction | None) -> dict[str, float]:
    """Detection of errors and of out-of-domain examples by mutual information."""
    if len(found.sample_logits) < 2:
        return {}
    own, wrong = found.mutual_information.double(), scores.correct == 0
    measured = {}
    if wrong.any() and not wrong.all():
        measured["error AUROC by MI"] = metrics.auroc(own[~wrong], own[wrong])
    if outside is not None:
        others = outside.mutual_information.double()
        measured["outside AUROC by MI"] = metrics.auroc(own, others)
    return measured


def _of_sets(
    found: Mapping[str, Prediction], tests: Mapping[str, Batches]
) -> dict[str, dict[str, float]]:
    """Size and coverage of conformal sets, fitted to half of the first test set.

    The first set is measured on its other half. Empty if it has a single example.
    """
    labels = {name: labels_of(tests[name]) for name in found}
    first = next(iter(found))
    if len(labels[first]) < 2:
        return {}
    order = torch.randperm(len(labels[first]), generator=torch.Generator().manual_seed(0))
    fitted, rest = order.chunk(2)
    conformal = fit_conformal(found[first][fitted], labels[first][fitted], coverage=COVERAGE)
    parts = {**found, first: found[first][rest]}
    labels[first] = labels[first][rest]
    measured = {name: conformal.evaluate(parts[name], labels[name]) for name in parts}
    return {n: {"set size": m["size"], "coverage": m["coverage"]} for n, m in measured.items()}


def compare_methods(
    models: Models,
    methods: Sequence[Method],
    seeds: Sequence[int],
    tests: Mapping[str, Batches],
    folder: Path,
    progress: Progress | None = None,
) -> list[Result]:
    """Evaluates every method with every seed; results in the folder are not computed again.

    Args:
        models: The models that methods are fitted to.
        methods: The methods.
        seeds: Seeds of the trainings.
        tests: Labelled batches by the name of the test set; `"outside"` has no labels.
        folder: Gets two files for each method and seed.
        progress: Displays the progress.
    """
    progress = progress or Progress()
    pairs = [(method, seed) for seed in seeds for method in methods]
    progress.begin("methods", len(pairs))
    results = []
    for method, seed in pairs:
        path = folder / f"{plain(method.name)}-{seed}.json"
        if not path.is_file():
            save(evaluate(method, models, seed, tests), path)
        results.append(load(path))
        progress.step(1, method.name)
    return results


def save(result: Result, path: Path) -> None:
    """Writes a JSON file with the record, and a safetensors file with the scores beside it."""
    make_folder(path.parent)
    tensors = {
        f"{part}/{name}": value.float()
        for part, scores in result.scores.items()
        for name, value in vars(scores).items()
        if value is not None
    }
    write_tensors(path.with_suffix(".safetensors"), tensors)
    replace_text(path, json.dumps(result.record(), indent=2) + "\n")


def load(path: Path) -> Result:
    """Reads the files that `save` wrote."""
    record = read_object(path, "Delete it to compute it again.")
    tensors, _ = read_tensors(path.with_suffix(".safetensors"))
    fields = [field.name for field in dataclasses.fields(Scores)]
    scores = {
        part: Scores(
            **{
                name: tensors[f"{part}/{name}"].double()
                for name in fields
                if f"{part}/{name}" in tensors
            }
        )
        for part in record["measures"]
    }
    measures = record.pop("measures")
    return Result(record.pop("method"), record.pop("seed"), measures, scores, record)
