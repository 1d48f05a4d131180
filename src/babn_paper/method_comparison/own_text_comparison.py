"""Methods of uncertainty compared on your own texts, described by flags as for `babn train`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from babn.devices import default_device
from babn.errors import ConfigError, DataError
from babn.evaluation.tables import Table
from babn.files import make_folder, read_object, replace_text
from babn.progress import Progress
from babn.training.fine_tuning import Recipe
from babn_paper.experiments.config_files import own_experiment
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.models import load_model
from babn_paper.method_comparison import Method, Models
from babn_paper.method_comparison.comparison_runs import OUTSIDE, Result, compare_methods
from babn_paper.method_comparison.interval_table import NEAR, comparison_table
from babn_paper.method_comparison.method_catalogue import shortened
from babn_paper.method_comparison.text_problem import Texts, text_problem
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.own_files import FILES, held_out_keys
from babn_paper.tasks.own_texts import OwnClassification
from babn_paper.tasks.reading import read_source
from babn_paper.tasks.task import Part
from babn_paper.tasks.text_task import TextExample, read_texts

FIELDS = ("epochs", "learning_rate", "batch_size", "max_length", "dropout", "classifier_dropout")
"""Fields of an experiment that a comparison uses, beside `options`."""

QUICK_TEXTS = 48
"""Texts of each part in a trial."""

DESCRIPTION = "comparison.json"


@dataclass(frozen=True)
class OwnTextComparison:
    """Data, model and methods of a comparison on your own texts.

    Attributes:
        experiment: Data, model and hyperparameters of the training.
        outside: File with out-of-domain texts, or `None`.
        methods: The methods.
        seeds: Seeds of the trainings.
        quick: Whether this is a trial: few texts, one epoch, few samples and members.
    """

    experiment: Experiment
    outside: str | None
    methods: Sequence[Method]
    seeds: Sequence[int]
    quick: bool = False

    @classmethod
    def of(
        cls, flags: Mapping[str, str | None], overrides: Mapping[str, Any], **others: Any
    ) -> "OwnTextComparison":
        """The comparison that flags describe."""
        if wrong := next((name for name in overrides if name not in (*FIELDS, "options")), None):
            raise ConfigError(
                f"--set {wrong} does not apply to a comparison of methods. Set one of "
                f"{', '.join(FIELDS)} or options.held_out."
            )
        return cls(own_experiment("classification", flags, overrides), **others)

    def run(self, folder: Path, progress: Progress) -> list[Result]:
        """Fits every method, or reads the results that the folder has."""
        parts, fingerprints = self._parts()
        self._check_folder(folder, fingerprints)
        task, experiment = self._task, self.experiment
        length = experiment.max_length or task.max_length
        train = Part("train", self._examples(parts["train"]), "", "")
        model, tokenizer = load_model(experiment, task, train, length)
        tokenizer.model_max_length = length
        device = default_device()
        del model  # every training starts from a new one

        def build() -> nn.Module:
            seed = torch.initial_seed() % 2**32
            return load_model(replace(experiment, seed=seed), task, train, length)[0].to(device)

        recipe = Recipe(
            1 if self.quick else math.ceil(experiment.epochs),
            experiment.learning_rate,
            experiment.batch_size,
        )
        problem = text_problem(build, tokenizer, parts.pop("train"), parts.pop("dev"), recipe)
        tests = {name: part.batches(tokenizer) for name, part in parts.items()}
        methods = [shortened(each) for each in self.methods] if self.quick else self.methods
        models = Models(problem, folder / "models")
        return compare_methods(models, methods, self.seeds, tests, folder / "results", progress)

    def table(self, results: Sequence[Result]) -> Table:
        """Measures on the test data."""
        caption = (
            "95 % intervals of a bootstrap over examples"
            + (" and seeds" if len(self.seeds) > 1 else "")
            + f". Bold: the best of a column; {NEAR}: its difference from the best is within the "
            "noise. training: time in units of one deterministic training; passes: forward passes "
            "of a prediction; lines: lines of code; tried: settings tried on development data."
        )
        return comparison_table(results, "test", caption)

    @property
    def _task(self) -> OwnClassification:
        task = find_task("classification", self.experiment.options)
        assert isinstance(task, OwnClassification)
        return task

    def _parts(self) -> tuple[dict[str, Texts], list[str]]:
        """Training, development, test and out-of-domain texts, and the files' fingerprints.

        Without test data, a share of the training data is held out for it as well.
        """
        task = self._task
        names = ("train", *task.tested_parts(FILES))
        read = {name: task.read(FILES, name) for name in names}
        prints = [part.fingerprint for part in read.values()]
        found = {name: list(part.examples) for name, part in read.items()}
        if "test" not in found:
            keys = [each.texts[0] for each in found["train"]]
            chosen = held_out_keys(keys, task.held_out, task.train)
            found["test"] = [each for each in found["train"] if each.texts[0] in chosen]
            found["train"] = [each for each in found["train"] if each.texts[0] not in chosen]
        parts = {name: self._texts(examples) for name, examples in found.items()}
        if self.outside is not None:
            rows, print_ = read_source(self.outside, "test")
            prints.append(print_)
            texts = [_text(read_texts(row, task.columns)) for row in rows]
            parts[OUTSIDE] = Texts(texts[: self._limit])
        return parts, prints

    @property
    def _limit(self) -> int | None:
        return QUICK_TEXTS if self.quick else None

    def _texts(self, examples: Sequence[TextExample]) -> Texts:
        kept = examples[: self._limit]
        if not kept:
            raise DataError("A part of the data is empty. Give more examples.")
        return Texts([_text(each.texts) for each in kept], [int(each.label) for each in kept])

    def _examples(self, part: Texts) -> list[TextExample]:
        """The texts as examples, from which a model with random weights gets its vocabulary."""
        pairs = zip(part.texts, part.labels, strict=True)
        return [TextExample((x,) if isinstance(x, str) else tuple(x), y) for x, y in pairs]

    def _check_folder(self, folder: Path, fingerprints: Sequence[str]) -> None:
        """Saves data and settings; raises if the folder holds a comparison with others."""
        about = {
            "experiment": {name: getattr(self.experiment, name) for name in ("model", *FIELDS)},
            "options": dict(self.experiment.options),
            "outside": self.outside,
            "data": fingerprints,
            "quick": self.quick,
        }
        path = folder / DESCRIPTION
        about = json.loads(json.dumps(about))
        if path.is_file() and read_object(path, "Delete the folder.") != about:
            raise ConfigError(
                f"{folder} holds a comparison with other data or settings. Give another --out."
            )
        make_folder(folder)
        replace_text(path, json.dumps(about, indent=2) + "\n")


def _text(texts: Sequence[str]) -> Any:
    return texts[0] if len(texts) == 1 else tuple(texts)
