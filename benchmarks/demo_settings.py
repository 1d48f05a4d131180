"""The settings tried for the demo, compared on the dev split over several seeds.

    python benchmarks/demo_settings.py [--seeds 0 1 2] [--only NAME ...] [--out FILE]

Fine-tunes the pretrained MiniLM on the intents once per setting and seed, about a minute each on
one core, and prints means over seeds with the standard deviation between them. The test split is
never read.
"""

import argparse
import copy
import json
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers

import babn
from babn.data import intents
from babn.demo import choices, models
from babn.demo.batches import make_batches
from babn.demo.evaluation import Scores, Texts, answer, score
from babn.demo.training import Recipe, train

Setting = tuple[babn.RuleConfig, Recipe]
COLUMNS = ("accuracy", "nll", "ece", "auroc_entropy", "auroc_mutual_information")


def settings() -> dict[str, Setting]:
    """What is tried, by name."""
    recipe = choices.PRETRAINED
    fast = replace(recipe, belief_rate=10 * recipe.belief_rate)
    belief = choices.RULES["BABN"]
    tried: dict[str, Setting] = {"softmax": (babn.SoftmaxConfig(), recipe)}
    for k in (1.0, 3.0, 10.0):
        tried[f"BAM k={k:g}"] = replace(choices.RULES["BAM"], k=k), recipe
    for rho in (0.5, 1.5, 4.0, 12.0):
        tried[f"BABN rho={rho:g}"] = replace(belief, rho=rho), recipe
    tried["BABN rho=4, belief rate x 10"] = belief, fast
    return tried


def run(setting: Setting, seed: int) -> dict[str, Scores]:
    """Scores on the dev split by mode, after training with one seed."""
    config, recipe = setting
    train_texts, names = intents.in_scope("train"), intents.intent_names()
    base, tokenizer = models.load(models.find_source("auto"), train_texts.texts, len(names), seed)
    batches = make_batches(
        tokenizer, train_texts, recipe.batch_size, recipe.epochs, seed, torch.device("cpu")
    )
    model = babn.convert(copy.deepcopy(base), config, batches[0])
    train(model, batches, recipe, seed, lambda step: None)
    # Ambiguous texts belong to no split, so they are left for the demo itself.
    texts = Texts(intents.in_scope("dev"), intents.out_of_scope("dev"), intents.ambiguous()[:1])
    modes = {"mean": None} if config.rule == "softmax" else {"mean": None, "sampled": 10}
    return {
        mode: score(answer(model, tokenizer, texts, count, seed, lambda n: None), texts, names)
        for mode, count in modes.items()
    }


def quoted(scores: Scores) -> dict[str, float | None]:
    """The numbers that the table shows, rounded."""
    values = asdict(scores)
    return {name: values[name] and round(values[name], 4) for name in COLUMNS}


def table(results: dict[str, list[dict[str, float | None]]]) -> Iterator[str]:
    """Rows of the printed table."""
    yield f"{'setting':<38}" + "".join(f"{name[:12]:>16}" for name in COLUMNS)
    for name, runs in results.items():
        cells = (spread([run[column] for run in runs]) for column in COLUMNS)
        yield f"{name:<38}" + "".join(f"{cell:>16}" for cell in cells)


def spread(values: list[float | None]) -> str:
    """Mean and standard deviation between seeds."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "-"
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else float("nan")
    return f"{statistics.fmean(numbers):.3f} +- {deviation:.3f}"


def main() -> None:
    """Runs every setting with every seed, saving after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(settings()), default=list(settings()))
    parser.add_argument("--out", type=Path, default=Path("demo_settings.json"))
    args = parser.parse_args()
    results: dict[str, list[dict[str, float | None]]] = {}
    machine = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "seeds": args.seeds,
    }
    for seed in args.seeds:
        for name in args.only:
            for mode, scores in run(settings()[name], seed).items():
                results.setdefault(f"{name}, {mode}", []).append(quoted(scores))
            args.out.write_text(json.dumps({"versions": machine, "results": results}, indent=1))
            print(f"seed {seed}: {name} done", flush=True)
    print(*table(results), sep="\n")


if __name__ == "__main__":
    main()
