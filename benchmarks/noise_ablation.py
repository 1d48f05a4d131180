"""Compares structures of the noise on development data.

    python benchmarks/noise_ablation.py --model FOLDER --data FOLDER --task cola --seed 0 --out DIR

Fine-tunes an encoder with softmax attention and with several forms of noise. Every amount of noise
is fitted on 600 texts and evaluated on 600 others, all held out of the training data. GLUE's
development sets, which `noise_table.py` tests on, are not used.
"""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from noise_table import (
    TASKS,
    TRAINED,
    Data,
    arguments,
    encode,
    fresh,
    labels_of,
    logits_of,
    mc_dropout,
    prepare,
    read,
    set_dropout,
    tempered,
    train,
    tuned,
    write,
)
from torch import Tensor, nn

import babn
from babn.attention.keys import KeyPosterior
from babn.attention.noise_source import NoiseLike

FITTED = 600
"""Texts for fitting noise, and as many for evaluating it."""


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
    plain, last = KeyPosterior.log_sample, [None, None]

    def log_sample(self: KeyPosterior, noise: NoiseLike) -> Tensor:
        loc = self.variables.loc.detach()
        like = loc[:, :1] if over == "heads" else loc
        if over == "heads" or last[0] is not noise:
            last[:] = noise, noise.noise(self.variables.noise, like, self.scores.phi.shape[-2])
        return self.variables.log_sample_from(last[1].expand_as(loc))

    KeyPosterior.log_sample = log_sample  # type: ignore[method-assign]
    try:
        yield
    finally:
        KeyPosterior.log_sample = plain  # type: ignore[method-assign]


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
        found[name] = tuned(model, sets)
        babn.revert(model)
    babn.convert(model)
    for over in ("heads", "layers"):
        with shared(over):
            found[f"per key, shared over {over}"] = tuned(model, sets)
    babn.revert(model)
    return found


TRAINED_CONFIGS = {
    "per key": babn.BeliefConfig(),
    "per key, rho 1": babn.BeliefConfig(rho=1.0),
    "per key, rho 4": babn.BeliefConfig(rho=4.0),
    "per pair, constant k": babn.BamConfig(k=2.0, kl_weight=0.01),
}


def run(args: Any) -> None:
    """One task and seed."""
    tokenizer, data, sets = prepare(args, load_data)
    model = fresh(args)
    train(model, data["train"], tokenizer, args.seed, args)
    babn.convert(model, babn.SoftmaxConfig())
    found: dict[str, Any] = {
        "deterministic + TS": tempered(logits_of(model, sets, 1), labels_of(sets))
    }
    found |= mc_dropout(model, sets)
    set_dropout(model, 0.1)
    babn.revert(model)
    found |= {f"not trained: {name}": x for name, x in after_training(model, sets).items()}
    for name, config in TRAINED_CONFIGS.items():
        model = fresh(args)
        babn.convert(model, config)
        train(model, data["train"], tokenizer, args.seed, args)
        found[f"trained: {name}"] = tuned(model, sets)
    write(args, methods=found)


if __name__ == "__main__":
    torch.set_num_threads(max(torch.get_num_threads() // 2, 1))
    run(arguments(TASKS).parse_args())
