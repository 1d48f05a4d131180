"""Whether uncertainty maps of trained models are about the input.

    python benchmarks/map_content.py [--only bert vit]

Trains a small BERT on the intents of `babn demo` and a small ViT on generated pictures, each with
two seeds. Measures the maps with `map_measures.py` before and after training, at noise level 1 and
at the level that `babn.tune_noise` finds, and how far the maps of both trainings agree.
`noise_table.py` does the same for pretrained encoders.
"""

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from map_measures import map_content
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, get_linear_schedule_with_warmup

import babn
from babn.data import intents
from babn.demo.classifier import find_source, load
from babn.files import replace_file
from babn.prediction.batches import encode
from babn_paper.experiments.run_folder import machine, versions
from babn_paper.experiments.training_state import bucketed

ROOT = Path(__file__).parents[1]
LIMITS = {"by_position": 0.6, "mean by_position": 0.5, "excess": 0.15}
"""Upper limits of `summary`."""

INPUTS = 64
"""Inputs that maps are measured on."""

TUNED_PICTURES, SAMPLES = 256, 10
"""What noise levels are found with."""

VIT = {
    "image_size": 32,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
SHAPES = ("disc", "square", "ring", "cross", "bar", "triangle")

Batch = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """AdamW with one rate for all parameters, warmup and linear decay.

    Attributes:
        epochs: Passes over the training data.
        rate: Highest learning rate.
        batch_size: Examples in one step.
    """

    epochs: int
    rate: float
    batch_size: int


FROM_SCRATCH = Recipe(epochs=10, rate=1e-3, batch_size=16)


@dataclass(frozen=True)
class Subject:
    """A model, its training, and the inputs that its maps are measured on.

    Attributes:
        fresh: Makes the model, always with the same weights.
        batches: What it is trained on, in this order.
        recipe: How it is trained.
        inputs: Inputs of equal length that it was not trained on.
        special: Positions of special tokens, which are the same in all inputs.
        tuning: Labelled batches that it was not trained on, for the noise level.
        settings: What else the results depend on.
    """

    fresh: Callable[[], nn.Module]
    batches: list[Batch]
    recipe: Recipe
    inputs: Batch
    special: tuple[int, ...]
    tuning: list[Batch]
    settings: dict[str, Any]


def bert(args: argparse.Namespace) -> Subject:
    """The demo's small BERT on its intents."""
    training, development = intents.in_scope("train"), intents.in_scope("dev")
    recipe, seed = FROM_SCRATCH, args.seed
    _, tokenizer = small_bert(seed)
    texts = [*intents.in_scope("test").texts, *development.texts, *intents.out_of_scope("test")]
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    length = Counter(lengths).most_common(1)[0][0]
    alike = [text for text, each in zip(texts, lengths, strict=True) if each == length]
    return Subject(
        lambda: small_bert(seed)[0],
        intent_batches(tokenizer, training, recipe.batch_size, recipe.epochs, seed),
        recipe,
        encode(tokenizer, alike[:INPUTS], torch.device("cpu")),
        (0, -1),
        intent_batches(tokenizer, development, 64, 1, seed),
        {"data": "intents", "examples": len(training), "classes": 16, "tokens": length},
    )


def small_bert(seed: int) -> tuple[nn.Module, Any]:
    """The demo's model that needs no download, and its tokenizer."""
    names, training = intents.intent_names(), intents.in_scope("train")
    return load(find_source("small"), training.texts, len(names), seed)


def intent_batches(
    tokenizer: Any, data: intents.Labelled, size: int, epochs: int, seed: int
) -> list[Batch]:
    """Batches of texts of about the same length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [len(ids) for ids in tokenizer(list(data.texts))["input_ids"]]
    return [
        {
            **encode(tokenizer, [data.texts[i] for i in rows], torch.device("cpu")),
            "labels": torch.tensor([data.labels[i] for i in rows]),
        }
        for _ in range(epochs)
        for rows in bucketed(lengths, size, generator)
    ]


def vit(args: argparse.Namespace) -> Subject:
    """A small ViT on pictures of one shape each."""
    count, seed = args.pictures, args.seed
    pixels, labels = pictures(count + TUNED_PICTURES + INPUTS, seed)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(count, generator=generator) for _ in range(FROM_SCRATCH.epochs)]
    chosen = [rows for order in orders for rows in order.split(FROM_SCRATCH.batch_size)]
    config = ViTConfig(**VIT, num_labels=len(SHAPES))

    def fresh() -> nn.Module:
        torch.manual_seed(seed)
        return ViTForImageClassification(config)

    return Subject(
        fresh,
        [{"pixel_values": pixels[rows], "labels": labels[rows]} for rows in chosen],
        FROM_SCRATCH,
        {"pixel_values": pixels[-INPUTS:]},
        (0,),
        [{"pixel_values": pixels[count:-INPUTS], "labels": labels[count:-INPUTS]}],
        {"data": "pictures", "examples": count, "classes": len(SHAPES), "tokens": 65},
    )


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of 32 x 32 pixels with one bright shape at a random place."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    radius = 4 + 3 * torch.rand(count, 1, 1, generator=generator)
    centre = 8 + 16 * torch.rand(2, count, 1, 1, generator=generator)
    grid = torch.arange(32.0)
    x, y = (grid[None, None, :] - centre[0]) / radius, (grid[None, :, None] - centre[1]) / radius
    x, y = torch.broadcast_tensors(x, y)
    inside = (x.abs() < 1) & (y.abs() < 1)
    far = x.square() + y.square()
    drawn = torch.stack(
        [
            far < 1,
            inside,
            (far < 1) & (far > 0.3),
            inside & ((x.abs() < 0.3) | (y.abs() < 0.3)),
            inside & (y.abs() < 0.35),
            inside & (x.abs() < (y + 1) / 2),
        ]
    )
    shape = drawn[labels, torch.arange(count)].float()
    noise = 0.3 * torch.randn(count, 32, 32, generator=generator)
    return (shape + noise - 0.2).unsqueeze(1), labels


def study(subject: Subject, seed: int, say: Callable[[str], None]) -> Batch:
    """Everything that is measured of one model."""
    config = babn.BeliefConfig()
    seeds = seed, seed + 1
    pair = []
    for each in seeds:
        model = subject.fresh()
        torch.manual_seed(each)
        pair.append(babn.convert(model, config, subject.tuning[0]).eval())
    found: Batch = {"before training": record(pair, subject)}
    for model, each in zip(pair, seeds, strict=True):
        train(model, subject, each, lambda text, each=each: say(f"seed {each}, {text}"))
    found["after training"] = record(pair, subject)
    tuned = babn.tune_noise(pair[0], subject.tuning, samples=SAMPLES, progress=False)
    say(f"noise levels\n{tuned}")
    babn.set_noise_level(pair[1], tuned.level)
    found["after training, tuned"] = record(pair, subject) if tuned.level else None
    trials = [asdict(trial) for trial in tuned.trials]
    return {"config": config.to_dict(), "level": tuned.level, "trials": trials, "stages": found}


def train(model: nn.Module, subject: Subject, seed: int, say: Callable[[str], None]) -> None:
    """Trains a converted model in place."""
    torch.manual_seed(seed)
    model.train()
    total = len(subject.batches)
    warmup, annealing = round(0.1 * total), babn.KLAnnealing()
    optimizer = torch.optim.AdamW(model.parameters(), subject.recipe.rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, warmup, total)
    for step, batch in enumerate(subject.batches):
        annealing.apply(model, step, total)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            say(f"step {step + 1} of {total}, loss {loss.item():.3f}")
    model.eval()


def record(pair: list[nn.Module], subject: Subject) -> list[Batch]:
    """The measures of each layer of the first model, and how far both models' maps agree.

    `excess` is the correlation between the uncertainty maps of two inputs less that between their
    maps of log mean weights, `inner` leaves special tokens out, and `seeds` correlates the maps of
    both models, `seeds of weights` their mean weights.
    """
    inputs = subject.inputs
    whole = map_content(pair[0], inputs)
    inner = map_content(pair[0], inputs, without=subject.special)
    first, second = (babn.attention_maps(model, inputs) for model in pair)
    return [
        {
            **asdict(one),
            "excess": one.between_texts - one.weights_between_texts,
            "inner by_position": part.by_position,
            "inner excess": part.between_texts - part.weights_between_texts,
            "seeds": correlation(a.relative_std, b.relative_std),
            "seeds of weights": correlation(a.mean, b.mean),
        }
        for one, part, a, b in zip(whole, inner, first, second, strict=True)
    ]


def correlation(a: Tensor, b: Tensor) -> float:
    """Correlation of two maps' logarithms."""
    both = (a > 0) & (b > 0)
    return float(
        torch.corrcoef(torch.stack([a[both].double().log(), b[both].double().log()]))[0, 1]
    )


def summary(layers: list[Batch]) -> Batch:
    """The worst layer of each measure, and the mean share by position."""
    shares = [layer["by_position"] for layer in layers]
    return {
        "by_position": max(shares),
        "mean by_position": sum(shares) / len(shares),
        "excess": max(layer["excess"] for layer in layers),
        "inner by_position": max(layer["inner by_position"] for layer in layers),
        "seeds": min(layer["seeds"] for layer in layers),
        "seeds of weights": min(layer["seeds of weights"] for layer in layers),
    }


def table(results: Batch) -> list[str]:
    """The worst layers of all models, with a star where a limit is not met."""
    found = {
        f"{subject}, {stage}": summary(layers)
        for subject, each in results.items()
        for stage, layers in each["stages"].items()
        if layers is not None
    }
    lines = [f"{'':<42}" + "".join(f"{name:>18}" for name in next(iter(found.values())))]
    for label, row in found.items():
        cells = (f"{value:.2f}{star(name, value)}" for name, value in row.items())
        lines.append(f"{label:<42}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def star(name: str, value: float) -> str:
    """A star if the value is above its limit."""
    return "*" if value > LIMITS.get(name, math.inf) else " "


SUBJECTS = {"bert": bert, "vit": vit}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=2000, help="that the ViT is trained on")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/map-content.json")
    return parser.parse_args()


def main() -> None:
    """Runs the studies, saving after each, and keeps those that the file has of other models."""
    args = parse()
    results = json.loads(args.out.read_text())["results"] if args.out.exists() else {}
    for name in args.only:
        subject, began = SUBJECTS[name](args), time.perf_counter()

        def say(text: str, of: str = name, began: float = began) -> None:
            print(f"{time.perf_counter() - began:6.0f} s  {of}: {text}", flush=True)

        results[name] = {
            "settings": {
                **subject.settings,
                "inputs": INPUTS,
                "seed": args.seed,
                "recipe": asdict(subject.recipe),
            },
            "versions": versions(),
            "machine": machine(),
            **study(subject, args.seed, say),
        }
        text = json.dumps({"limits": LIMITS, "results": results}, indent=1)
        replace_file(args.out, lambda partial, text=text: partial.write_text(text + "\n"))
    print(*table(results), sep="\n")


if __name__ == "__main__":
    main()
