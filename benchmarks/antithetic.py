"""Errors of mean probabilities with mirrored and with independent samples.

    python benchmarks/antithetic.py --out benchmarks/results/antithetic.json

Converts the classifier of the quick start, fits its noise on development texts, and predicts test
texts with several seeds, at the fitted level and at level 1. The error is the standard deviation
over seeds of a text's mean probabilities, summed over classes and averaged over texts as squares.
Needs no GPU.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from from_scratch import environment

import babn
from babn.data import intents
from babn.demo.classifier import find_source, intent_classifier

SAMPLES, SEEDS = (10, 20), range(16)
CLEAR, OUTSIDE = 40, 20
"""Test texts with an intent, and without one."""


def measured(model: Any, tokenizer: Any, texts: list[str], samples: int, antithetic: bool) -> Any:
    """The error of means, and the mean mutual information."""
    found = [
        babn.predict(
            model, texts, samples, seed, tokenizer=tokenizer, antithetic=antithetic, progress=False
        )
        for seed in SEEDS
    ]
    error = torch.stack([each.probs for each in found]).var(0).sum(-1).mean().sqrt()
    information = torch.stack([each.mutual_information for each in found]).mean()
    return {"error": round(float(error), 4), "mutual_information": round(float(information), 4)}


def main() -> None:
    """Prints and writes the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model, tokenizer = intent_classifier(args.model)
    development, test = intents.in_scope("dev"), intents.in_scope("test")
    babn.convert(model)
    tuned = babn.tune_noise(
        model, development.texts, development.labels, tokenizer=tokenizer, progress=False
    )
    texts = [*test.texts[:CLEAR], *intents.out_of_scope("test")[:OUTSIDE]]
    results: dict[str, Any] = {
        "environment": environment("cpu"),
        "model": find_source(args.model).name,
        "seeds": len(SEEDS),
        "levels": [],
    }
    for level in (tuned.level, 1.0):
        babn.set_noise_level(model, level)
        found: dict[str, Any] = {"level": level}
        for name, antithetic in (("independent", False), ("antithetic", True)):
            found[name] = {n: measured(model, tokenizer, texts, n, antithetic) for n in SAMPLES}
            print(f"{level:.2f}", name, found[name], flush=True)
        results["levels"].append(found)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
