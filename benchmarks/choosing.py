"""Compares methods of uncertainty on texts: in domain, under a shift, and out of domain.

    python benchmarks/choosing.py --model FOLDER --data FOLDER --out DIR
    python benchmarks/choosing.py --laplace DIR...

Fine-tunes an encoder for every method that needs it, chooses settings on development data, and
writes `DIR/MODEL-TASK/METHOD-SEED.json` after each method; methods with a file are skipped. Several
processes with the same arguments divide the work (`sharing.py`). The second form fits what needs
only the last layer, the Laplace approximation and the deterministic model's temperature, to the
features that a machine without laplace-torch has written with `--features`.
`choosing_results.py` collects the files.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from from_scratch import environment
from noise_table import read
from saved_features import load_features, save_features
from sharing import SharedModels, evaluations, schedule, work
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from babn.devices import device_of
from babn.prediction.batches import placed_batches
from babn.text import quiet
from babn.training.fine_tuning import Recipe
from babn_paper.method_comparison import Method, Models
from babn_paper.method_comparison.comparison_runs import OUTSIDE, compare_methods
from babn_paper.method_comparison.laplace import LastLayerLaplace
from babn_paper.method_comparison.method_catalogue import (
    GROUPS,
    TS,
    find_methods,
    is_installed,
    shortened,
    untuned,
)
from babn_paper.method_comparison.text_problem import Texts, text_problem
from babn_paper.method_comparison.trained_models import Batches

Source = tuple[str, tuple[str, ...]]
"""A file in the data folder without `.tsv.gz`, and the columns of its texts."""

BINARY = {"0": 0, "1": 1}
NLI = {"entailment": 0, "neutral": 1, "contradiction": 2}


@dataclass(frozen=True)
class Task:
    """Data and training of a task.

    Attributes:
        train: Training data.
        development: Development data; without it some of the training data is held out.
        test: Test data.
        shift: Labelled data from elsewhere, by name.
        outside: Out-of-domain data.
        classes: Index of each label; without it labels are numbered in alphabetical order.
        texts: Training texts, at most.
        recipe: How encoders are fine-tuned.
        tested: Texts of a test set, at most.
    """

    train: Source
    development: Source | None
    test: Source
    shift: dict[str, Source]
    outside: Source
    classes: dict[str, int] | None
    texts: int
    recipe: Recipe
    tested: int = 2000


_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_NLI = ("premise", "hypothesis")

TASKS = {
    "clinc150": Task(
        ("clinc150/train", ("sentence",)),
        ("clinc150/dev", ("sentence",)),
        ("clinc150/test", ("sentence",)),
        {},
        ("clinc150/oos_test", ("sentence",)),
        None,
        15_000,
        Recipe(epochs=4, rate=4e-4, batch_size=64),
        tested=4500,
    ),
    "sst2": Task(
        ("sst2/train", ("sentence",)),
        None,
        ("sst2/dev", ("sentence",)),
        {
            "restaurants": ("attack_resources/textfooler_yelp", ("text",)),
            "whole reviews": ("attack_resources/textfooler_imdb", ("text",)),
        },
        ("attack_resources/textfooler_ag", ("text",)),
        BINARY,
        8000,
        Recipe(epochs=3, rate=1.5e-4, batch_size=64),
    ),
    "mrpc": Task(
        ("mrpc/train", _PAIR),
        None,
        ("mrpc/dev", _PAIR),
        {"QQP": ("qqp/dev", _QUESTIONS)},
        ("rte/dev", _PAIR),
        BINARY,
        4000,
        Recipe(epochs=4, rate=1.5e-4, batch_size=64),
    ),
    "snli": Task(
        ("snli/train_subset", _NLI),
        ("snli/dev", _NLI),
        ("snli/test", _NLI),
        {"MNLI": ("mnli/dev_matched", _NLI)},
        ("qqp/dev", _QUESTIONS),
        NLI,
        10_000,
        Recipe(epochs=3, rate=1.5e-4, batch_size=64),
    ),
}
ORDER = (
    *("deterministic", "deterministic, distance", "BABN", "SNGP", "MC dropout", "Laplace"),
    "BABN, not trained",
    *("ensemble", "label smoothing", "SNGP, BABN noise", "ensemble, BABN noise", "BABN pairs"),
    *("BAM", "BABN as published", "LoRA", "LoRA, BABN not trained", "LoRA, BABN", "PVeRA"),
    *("MonteCLoRA", "LoRA ensemble"),
)
"""Methods by importance, in which order they are compared."""

DEVELOPMENT, FOREIGN = 600, 1000
"""Texts of development data and from outside, at most."""

TOKENS = 128
"""Tokens of a text, at most."""

MEMORY = 2.0
"""Gigabytes for the attention of one pass, since several of these run beside each other. Other
activations come on top: those of 20 samples of 512 texts are about 8 GB."""


def load_data(folder: Path, task: Task, limit: int) -> dict[str, Texts]:
    """All texts by part, the same for every seed."""
    classes = classes_of(folder, task)
    rows = {
        "train": _rows(folder, task.train, classes),
        "test": _rows(folder, task.test, classes)[: task.tested],
        **{name: _rows(folder, each, classes)[: task.tested] for name, each in task.shift.items()},
        OUTSIDE: _rows(folder, task.outside, None)[:FOREIGN],
    }
    if task.development is None:
        rows["development"] = rows["train"][:DEVELOPMENT]
        rows["train"] = rows["train"][DEVELOPMENT:]
    else:
        rows["development"] = _rows(folder, task.development, classes)[:DEVELOPMENT]
    rows["train"] = rows["train"][: task.texts]
    return {name: _texts(part[:limit]) for name, part in rows.items()}


def _rows(folder: Path, source: Source, classes: dict[str, int] | None) -> list[tuple]:
    rows = read(folder / f"{source[0]}.tsv.gz", source[1], classes)
    random.Random(0).shuffle(rows)
    return rows


def classes_of(folder: Path, task: Task) -> dict[str, int]:
    """The index of each label."""
    if task.classes is not None:
        return task.classes
    names = {text for (text,), _ in read(folder / f"{task.train[0]}.tsv.gz", ("label",), None)}
    return {name: number for number, name in enumerate(sorted(names))}


def _texts(rows: list[tuple]) -> Texts:
    texts = [sides[0] if len(sides) == 1 else sides for sides, _ in rows]
    return Texts(texts, [label for _, label in rows])


def prepare(args: Any, name: str) -> tuple[Models, dict[str, Batches]]:
    """The problem of a task, and its test sets."""
    task = TASKS[name]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.model_max_length = TOKENS
    parts = load_data(args.data, task, args.limit)
    labels = len(classes_of(args.data, task))

    def build() -> nn.Module:
        with quiet():
            model = AutoModelForSequenceClassification.from_pretrained(
                args.model, num_labels=labels, dtype=torch.float32
            )
        return model.to(args.device)

    recipe = Recipe(
        args.epochs or task.recipe.epochs, args.lr or task.recipe.rate, task.recipe.batch_size
    )
    train, development = parts.pop("train"), parts.pop("development")
    problem = text_problem(build, tokenizer, train, development, recipe, MEMORY, args.at_once)
    tests = {name: part.batches(tokenizer, args.at_once) for name, part in parts.items()}
    weights = None if args.weights is None else args.weights / f"{args.model.name}-{name}"
    return SharedModels(problem, weights), tests


def warm_up(models: Models) -> None:
    """One step without timing, since the first one loads libraries."""
    model = models.problem.build()
    [batch] = placed_batches(models.problem.training[:1], device_of(model))
    model(**batch).loss.backward()


def run(args: Any) -> None:
    """All tasks."""
    for task in args.tasks:
        models, tests = prepare(args, task)
        warm_up(models)
        folder = args.out / f"{args.model.name}-{task}"
        write_about(folder, args, task)
        if args.features:
            for seed in args.seeds:
                save_features(models, seed, tests, folder / f"features-{seed}.safetensors")
        due = evaluations(models, methods(args), args.seeds, tests, folder)
        work(schedule(models, due), folder)


def methods(args: Any) -> list[Method]:
    """The methods to compare, by importance."""
    found: Sequence[Method] = [each for each in find_methods(args.methods) if is_installed(each)]
    found = [shortened(each) for each in found] if args.quick else found
    found = [untuned(each) for each in found] if args.costs else found
    return sorted(found, key=lambda each: ORDER.index(each.name.removesuffix(TS)))


def write_about(folder: Path, args: Any, task: str) -> None:
    """Writes what the files of a folder were measured with."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = TASKS[task].recipe
    about = {
        "task": task,
        "model": args.model.name,
        "settings": {
            "lr": args.lr or recipe.rate,
            "epochs": args.epochs or recipe.epochs,
            "batch_size": recipe.batch_size,
            "texts": min(TASKS[task].texts, args.limit),
        },
        **environment(args.device),
    }
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def laplace(folders: Sequence[Path]) -> None:
    """The methods of the last layer, from all stored features."""
    found = [
        each
        for each in GROUPS["post-hoc"]
        if isinstance(each, LastLayerLaplace) or each.name == f"deterministic{TS}"
    ]
    for path in sorted(path for folder in folders for path in folder.glob("features-*")):
        problem, tests = load_features(path)
        seed = int(path.stem.rpartition("-")[2])
        compare_methods(Models(problem), found, [seed], tests, path.parent)
        print(path)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of an encoder")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", choices=list(TASKS), nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--weights", type=Path, help="folder of trained models, to share them")
    parser.add_argument("--methods", nargs="+", default=list(GROUPS), help="methods or groups")
    parser.add_argument("--features", action="store_true", help="write features, for --laplace")
    parser.add_argument("--laplace", type=Path, nargs="+", help="folders with features")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--at-once", type=int, default=512, help="texts in a batch of a prediction")
    parser.add_argument("--limit", type=int, default=10**9, help="texts of each part, at most")
    parser.add_argument("--costs", action="store_true", help="fixed settings; measures costs only")
    parser.add_argument("--quick", action="store_true", help="few samples and members")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def main(arguments_: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    args = arguments().parse_args(arguments_)
    torch.set_float32_matmul_precision("high")
    if args.laplace is not None:
        laplace(args.laplace)
    else:
        run(args)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
