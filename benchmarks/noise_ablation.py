"""Compares structures of the noise on development data.

    python benchmarks/noise_ablation.py --model FOLDER --data FOLDER --task cola --seed 0 --out DIR

Fine-tunes an encoder with softmax attention and with several forms of noise. Every amount of noise
is fitted on 600 texts and evaluated on 600 others, all held out of the training data. GLUE's
development sets, which `noise_table.py` tests on, are not used.
"""

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from noise_table import (
    DROP,
    MEMORY,
    SAMPLES,
    TASKS,
    TRAINED,
    Data,
    batches,
    encode,
    half_precision,
    labels_of,
    logits_of,
    measures,
    parse,
    read,
    set_dropout,
    sorted_rows,
    train,
    tuned_dropout,
)
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import babn
from babn.attention.keys import KeyPosterior
from babn.attention.noise_source import NoiseLike

FITTED = 600
"""Texts for fitting noise, and as many for evaluating it."""

LEVELS = (0.25, 0.5, 0.75, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)


def load_data(folder: Path, task: str, tokenizer: Any, limit: int) -> dict[str, Data]:
    """Training texts, texts for fitting and evaluating, and foreign texts not tested on."""
    columns, classes, train_file, (other, *other_columns) = TASKS[task]
    rows = read(folder / task / f"{train_file}.tsv.gz", columns, classes)
    paths = {"qqp": "dev", "rte": "dev"}
    foreign = read(
        folder / other / f"{paths.get(other, 'train')}.tsv.gz", tuple(other_columns), None
    )
    for each in (rows, foreign):
        random.Random(0).shuffle(each)
    parts = {
        "tune": rows[:FITTED],
        "test": rows[FITTED : 2 * FITTED],
        "train": rows[2 * FITTED : 2 * FITTED + TRAINED],
        "foreign": foreign[-FITTED:],
    }
    return {name: encode(part[:limit], tokenizer) for name, part in parts.items()}


@contextlib.contextmanager
def shared(over: str) -> Iterator[None]:
    """Draws the noise of a key once for all heads, or for all layers."""
    plain, drawn = KeyPosterior.log_sample, {}

    def log_sample(self: KeyPosterior, noise: NoiseLike) -> Tensor:
        loc = self.variables.loc.detach()
        like = loc[:, :1] if over == "heads" else loc
        g = drawn.get((id(noise), over)) if over == "layers" else None
        if g is None:
            g = noise.key_noise(self.variables.noise, like, self.scores.phi.shape[-2])
            drawn.clear()
            drawn[id(noise), over] = g
        return self.variables.log_sample_from(g.expand_as(loc))

    KeyPosterior.log_sample = log_sample  # type: ignore[method-assign]
    try:
        yield
    finally:
        KeyPosterior.log_sample = plain  # type: ignore[method-assign]


def tuned(model: nn.Module, sets: dict[str, list[Data]], recenter: bool, **how: Any) -> Any:
    """Fits a converted model's noise, and evaluates it."""
    with half_precision(sets["tune"][0]["labels"]):
        found = babn.tune_noise(
            model,
            sets["tune"],
            samples=SAMPLES,
            recenter=recenter,
            max_accuracy_drop=DROP,
            memory=MEMORY,
            progress=False,
        )
    logits = logits_of(model, sets, SAMPLES, recenter=recenter, **how)
    return {**measures(logits, labels_of(sets)), "level": found.level}


def after_training(model: nn.Module, sets: dict[str, list[Data]]) -> dict[str, Any]:
    """Structures that a softmax model is converted to."""
    layers = len(model.bert.encoder.layer)
    third = max(layers // 3, 1)
    configs = {
        "per pair, constant k": babn.BamConfig(k=1.0),
        "per key": babn.BeliefConfig(),
        "per key, first third of layers": babn.BeliefConfig(layers=f"first:{third}"),
        "per key, last third of layers": babn.BeliefConfig(layers=f"last:{third}"),
    }
    found = {}
    for name, config in configs.items():
        babn.convert(model, config)
        found[name] = tuned(model, sets, True)
        babn.revert(model)
    babn.convert(model)
    found["per key, not recentered"] = tuned(model, sets, False)
    for over in ("heads", "layers"):
        with shared(over):
            found[f"per key, shared over {over}"] = tuned(model, sets, True)
    babn.revert(model)
    return found


TRAINED_CONFIGS = {
    "per key": babn.BeliefConfig(),
    "per key, rho 1": babn.BeliefConfig(rho=1.0),
    "per key, rho 4": babn.BeliefConfig(rho=4.0),
    "per key, KL weight 0.1": babn.BeliefConfig(kl_weight=0.1),
    "per pair, constant k": babn.BamConfig(k=2.0),
}


def all_levels(model: nn.Module, sets: dict[str, list[Data]]) -> dict[str, Tensor]:
    """Plain samples at every level, and the logits without noise."""
    babn.set_noise_level(model, 0.0)
    found = {f"mean.{name}": x for name, x in logits_of(model, sets, 1).items()}
    for level in LEVELS:
        babn.set_noise_level(model, level)
        for name, x in logits_of(model, sets, SAMPLES, recenter=False).items():
            found[f"{level}.{name}"] = x.half()
    return found


def run(args: Any) -> None:
    """One task and seed."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    data = load_data(args.data, args.task, tokenizer, args.limit)
    sets = {
        name: batches(data[name], sorted_rows(data[name]), 64, tokenizer, args.device)
        for name in ("tune", "test", "foreign")
    }

    def fresh() -> nn.Module:
        torch.manual_seed(args.seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            args.model, num_labels=2, dtype=torch.float32
        )
        return model.to(args.device)

    samples: dict[str, Tensor] = {}
    model = fresh()
    train(model, data["train"], tokenizer, args.seed, args)
    babn.convert(model, babn.SoftmaxConfig())
    found: dict[str, Any] = {"deterministic": measures(logits_of(model, sets, 1), labels_of(sets))}
    rate = tuned_dropout(model, sets)
    set_dropout(model, rate)
    dropped = logits_of(model, sets, SAMPLES, dropout=True)
    found["MC dropout"] = {**measures(dropped, labels_of(sets)), "level": rate}
    samples |= {f"dropout.{name}": x.half() for name, x in dropped.items()}
    set_dropout(model, 0.1)
    babn.revert(model)
    found |= {f"not trained: {name}": x for name, x in after_training(model, sets).items()}
    babn.convert(model)
    samples |= {f"not trained.{name}": x for name, x in all_levels(model, sets).items()}
    save(args, found, samples, labels_of(sets))
    for name, config in TRAINED_CONFIGS.items():
        model = fresh()
        babn.convert(model, config)
        train(model, data["train"], tokenizer, args.seed, args)
        found[f"trained: {name}"] = tuned(model, sets, True)
        if config == babn.BeliefConfig():
            found[f"trained: {name}, not recentered"] = tuned(model, sets, False)
            samples |= {f"trained.{at}": x for at, x in all_levels(model, sets).items()}
        save(args, found, samples, labels_of(sets))
    print(args.task, args.seed, flush=True)


def save(
    args: Any, found: dict[str, Any], samples: dict[str, Tensor], labels: dict[str, Tensor]
) -> None:
    """Writes what has been measured so far."""
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"{args.model.name}-{args.task}-{args.seed}"
    result = {"task": args.task, "seed": args.seed, "model": args.model.name, "methods": found}
    (args.out / f"{name}.json").write_text(json.dumps(result))
    truths = {f"labels.{name}": x for name, x in labels.items()}
    torch.save({**samples, **truths}, args.out / f"{name}.pt")


if __name__ == "__main__":
    torch.set_num_threads(max(torch.get_num_threads() // 2, 1))
    run(parse())
