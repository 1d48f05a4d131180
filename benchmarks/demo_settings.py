"""The settings tried for the demo, compared on the development texts over several seeds.

    python benchmarks/demo_settings.py [--seeds 0 1 2] [--only NAME ...] [--out FILE]

Fine-tunes the pretrained MiniLM on the intents once per setting and seed, about a minute each on
two cores, fits the noise level, and prints means over seeds with the standard deviation between
them. The test split is never read.
"""

import argparse
import json
import platform
import statistics
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

import babn
from babn.data import intents
from babn.demo.classifier import find_source, load
from babn.demo.demo_run import SAMPLES, TUNING_SAMPLES
from babn.demo.outcome import Texts, predictions, score
from babn.devices import device_of
from babn.errors import BabnWarning
from babn.prediction.batches import encode
from babn.training.fine_tuning import Recipe, fine_tune, text_data

Setting = tuple[babn.BeliefConfig | None, Recipe]
Found = dict[str, float | None]
COLUMNS = ("accuracy", "nll", "ece", "outside_entropy", "outside_information", "level")


def settings() -> dict[str, Setting]:
    """What is tried, by name: softmax, which is converted after training, and BABN."""
    tried: dict[str, Setting] = {}
    for epochs, rate in ((2, 5e-4), (3, 5e-4), (4, 5e-4), (4, 3e-4)):
        recipe = Recipe(epochs, rate)
        tried[f"softmax, {epochs} x {rate:g}"] = None, recipe
        tried[f"BABN, {epochs} x {rate:g}"] = babn.BeliefConfig(), recipe
    return tried


def run(setting: Setting, seed: int) -> dict[str, Found]:
    """Scores on the development texts by way of predicting, after training with one seed."""
    config, recipe = setting
    data, names = intents.in_scope("train"), intents.intent_names()
    model, tokenizer = load(find_source("auto"), data.texts, len(names), seed)
    example = encode(tokenizer, data.texts[:4], device_of(model))
    if config is not None:
        babn.convert(model, config, example)
    fine_tune(model, *text_data(tokenizer, data.texts, data.labels), recipe, seed)
    if config is None:
        babn.convert(model, None, example)
    development = intents.in_scope("dev")
    tuned = {"tokenizer": tokenizer, "samples": TUNING_SAMPLES, "progress": False}
    level = babn.tune_noise(model, development.texts, development.labels, **tuned).level
    # Ambiguous texts belong to no split, so they are left for the demo itself.
    texts = Texts(development, intents.out_of_scope("dev"), intents.ambiguous()[:1])

    def measure(at: float, samples: int, dropout: bool = False) -> Found:
        babn.set_noise_level(model, at)
        found = predictions(model, tokenizer, texts, samples, seed, lambda count: None, dropout)
        values = {**score(found, texts), "level": at}
        return {name: values[name] and round(values[name], 4) for name in COLUMNS}

    found = {"no noise": measure(0.0, 1), "tuned": measure(level, SAMPLES)}
    if config is None:
        found["MC dropout"] = measure(0.0, SAMPLES, dropout=True)
    return found


def table(results: dict[str, list[Found]]) -> Iterator[str]:
    """Rows of the printed table."""
    yield f"{'setting':<34}" + "".join(f"{name[:15]:>16}" for name in COLUMNS)
    for name, runs in results.items():
        cells = (spread([run[column] for run in runs]) for column in COLUMNS)
        yield f"{name:<34}" + "".join(f"{cell:>16}" for cell in cells)


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
    warnings.simplefilter("ignore", BabnWarning)
    results: dict[str, list[Found]] = {}
    machine = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "seeds": args.seeds,
    }
    for seed in args.seeds:
        for name in args.only:
            for way, found in run(settings()[name], seed).items():
                results.setdefault(f"{name}, {way}", []).append(found)
            args.out.write_text(json.dumps({"versions": machine, "results": results}, indent=1))
            print(f"seed {seed}: {name} done", flush=True)
    print(*table(results), sep="\n")


if __name__ == "__main__":
    main()
