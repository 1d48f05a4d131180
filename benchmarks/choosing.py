"""Compares methods of uncertainty on texts: in domain, under a shift, and out of domain.

    python benchmarks/choosing.py --model FOLDER --data FOLDER --task clinc150 --seed 0 --out DIR
    python benchmarks/choosing.py --laplace DIR...

Fine-tunes an encoder for every method that needs it, chooses settings on development data, and
writes `DIR/MODEL-TASK/METHOD-SEED.json` after each method; methods with a file are skipped. The
second form computes the Laplace approximation from the features that a machine without
laplace-torch has written with `--features`. `choosing_results.py` collects the files. Several
processes may share a folder: one for each seed and group of methods (`--methods trained`).
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from noise_table import environment, read
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from babn.methods import Method, Models
from babn.methods.catalogue import GROUPS, find_methods, is_installed, shortened
from babn.methods.heads import load_features, save_features
from babn.methods.laplace import LastLayerLaplace
from babn.methods.models import Batches
from babn.methods.run import OUTSIDE, compare_methods
from babn.methods.texts import Texts, text_problem
from babn.prediction.batches import device_of, placed_batches
from babn.progress import Progress
from babn.text.pretrained import quiet
from babn.training.fine_tuning import Recipe

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
    """

    train: Source
    development: Source | None
    test: Source
    shift: dict[str, Source]
    outside: Source
    classes: dict[str, int] | None
    texts: int
    recipe: Recipe


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
        Recipe(epochs=5, rate=3e-4, batch_size=64),
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
        Recipe(epochs=3, rate=1e-4, batch_size=32),
    ),
    "mrpc": Task(
        ("mrpc/train", _PAIR),
        None,
        ("mrpc/dev", _PAIR),
        {"QQP": ("qqp/dev", _QUESTIONS)},
        ("rte/dev", _PAIR),
        BINARY,
        4000,
        Recipe(epochs=4, rate=1e-4, batch_size=32),
    ),
    "snli": Task(
        ("snli/train_subset", _NLI),
        ("snli/dev", _NLI),
        ("snli/test", _NLI),
        {"MNLI": ("mnli/dev_matched", _NLI)},
        ("qqp/dev", _QUESTIONS),
        NLI,
        10_000,
        Recipe(epochs=3, rate=1e-4, batch_size=32),
    ),
}
HELD_OUT, DEVELOPMENT, TESTED, FOREIGN = 600, 1500, 4500, 1000
"""Texts that are held out for development, of development data, of a test set, and from outside."""

TOKENS = 128
MEMORY = 2.0
"""Gigabytes for one pass, since several of these run beside each other."""


def load_data(folder: Path, task: Task, limit: int) -> dict[str, Texts]:
    """All texts by part, the same for every seed."""
    classes = task.classes or _found_classes(folder, task.train)
    rows = {
        "train": _rows(folder, task.train, classes),
        "test": _rows(folder, task.test, classes)[:TESTED],
        **{name: _rows(folder, each, classes)[:TESTED] for name, each in task.shift.items()},
        OUTSIDE: _rows(folder, task.outside, None)[:FOREIGN],
    }
    if task.development is None:
        rows["development"] = rows["train"][:HELD_OUT]
        rows["train"] = rows["train"][HELD_OUT:]
    else:
        rows["development"] = _rows(folder, task.development, classes)[:DEVELOPMENT]
    rows["train"] = rows["train"][: task.texts]
    return {name: _texts(part[:limit]) for name, part in rows.items()}


def _rows(folder: Path, source: Source, classes: dict[str, int] | None) -> list[tuple]:
    rows = read(folder / f"{source[0]}.tsv.gz", source[1], classes)
    random.Random(0).shuffle(rows)
    return rows


def _found_classes(folder: Path, source: Source) -> dict[str, int]:
    names = {texts[0] for texts, _ in read(folder / f"{source[0]}.tsv.gz", ("label",), None)}
    return {name: number for number, name in enumerate(sorted(names))}


def _texts(rows: list[tuple]) -> Texts:
    texts = [sides[0] if len(sides) == 1 else sides for sides, _ in rows]
    return Texts(texts, [label for _, label in rows])


def prepare(args: Any) -> tuple[Models, dict[str, Batches]]:
    """The problem of a task, and its test sets."""
    task = TASKS[args.task]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.model_max_length = TOKENS
    parts = load_data(args.data, task, args.limit)
    labels = max(max(parts["train"].labels) + 1, 2)

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
    problem = text_problem(build, tokenizer, train, development, recipe, MEMORY)
    return Models(problem), {name: part.batches(tokenizer) for name, part in parts.items()}


class Lines(Progress):
    """Prints the name of each finished method."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Prints the number of methods."""
        print(total, task, flush=True)

    def step(self, count: int, note: str = "") -> None:
        """Prints the method."""
        print(note, flush=True)


def warm_up(models: Models) -> None:
    """One step without timing, since the first one loads libraries."""
    model = models.problem.build()
    [batch] = placed_batches(models.problem.training[:1], device_of(model))
    model(**batch).loss.backward()


def run(args: Any) -> None:
    """One task and seed."""
    models, tests = prepare(args)
    warm_up(models)
    folder = args.out / f"{args.model.name}-{args.task}"
    methods = [each for each in find_methods(args.methods) if is_installed(each)]
    write_about(folder, args)
    if args.features:
        folder.mkdir(parents=True, exist_ok=True)
        save_features(models, args.seed, tests, folder / f"features-{args.seed}.safetensors")
    chosen: Sequence[Method] = [shortened(each) for each in methods] if args.quick else methods
    compare_methods(models, chosen, [args.seed], tests, folder, Lines())


def write_about(folder: Path, args: Any) -> None:
    """Writes what the files of a folder were measured with."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = TASKS[args.task].recipe
    about = {
        "task": args.task,
        "model": args.model.name,
        "settings": {
            "lr": args.lr or recipe.rate,
            "epochs": args.epochs or recipe.epochs,
            "batch_size": recipe.batch_size,
            "texts": min(TASKS[args.task].texts, args.limit),
        },
        **environment(args.device),
    }
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def laplace(folders: Sequence[Path]) -> None:
    """The Laplace approximation of all stored features."""
    methods = [m for m in GROUPS["post-hoc"] if isinstance(m, LastLayerLaplace)]
    for path in sorted(path for folder in folders for path in folder.glob("features-*")):
        problem, tests = load_features(path)
        seed = int(path.stem.rpartition("-")[2])
        compare_methods(Models(problem), methods, [seed], tests, path.parent)
        print(path)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of an encoder")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--task", choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--methods", nargs="+", default=list(GROUPS), help="methods or groups")
    parser.add_argument("--features", action="store_true", help="write features, for --laplace")
    parser.add_argument("--laplace", type=Path, nargs="+", help="folders with features")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int, default=10**9, help="texts of each part, at most")
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
