"""Compares methods of uncertainty on a small language model trained from scratch.

    python benchmarks/choosing_lm.py --data FOLDER --out DIR

The model is a GPT-2 of 6 layers of width 256 on tokens that `text_data.py` has written. Reports the
calibration of next-token probabilities on test articles and on talks (a shift of the domain), and
how well scores detect shuffled words and German text. Settings are chosen on development articles.
Several processes with the same arguments divide the work (`sharing.py`).
"""

import argparse
import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from from_scratch import train, write_about
from noise_table import MEMORY, half_precision, set_dropout
from sharing import Evaluation, SharedModels, schedule, work
from text_data import CONTEXT, Tokens, shuffled, synthetic, windows
from token_scores import AT_ONCE, Draw, as_examples, best_temperature, detection, token_scores
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import babn
from babn_paper.method_comparison.basic_methods import (
    APART,
    RATES,
    Deterministic,
    Ensemble,
    McDropout,
)
from babn_paper.method_comparison.comparison_runs import Result, save
from babn_paper.method_comparison.method_catalogue import TS
from babn_paper.method_comparison.random_attention import RandomAttention, attention
from babn_paper.method_comparison.trained_models import SOFTMAX, Models, Problem, Variant

FOLDER = "gpt2-lm_text"
SAMPLES, MEMBERS = 10, 5
BATCH, TUNED, TESTED = 64, 64, 200
"""Windows in a training batch, for choosing settings, and of each test set."""

NOISE = {
    "BABN": attention("BABN", babn.BeliefConfig()),
    "BAM": attention("BAM", babn.BamConfig()),
    "BABN pairs": attention("BABN pairs", babn.BeliefConfig.pairs(max_length=CONTEXT)),
}
NAMES = (
    *("deterministic", "BABN", "MC dropout", "BABN, not trained"),
    *("ensemble", "BABN pairs", "BAM"),
)
"""Methods by importance, in which order they are compared."""


@dataclass(frozen=True)
class Fitted:
    """A method with its settings chosen.

    Attributes:
        draw: Samples of logits.
        code: The lines that a user writes.
        trainings: Variants and seeds of its models.
        passes: Forward passes for one prediction.
        settings: What was chosen on development data.
        tried: How many settings were tried on development data.
    """

    draw: Draw
    code: str
    trainings: list[tuple[Variant, int]]
    passes: int = 1
    settings: Mapping[str, float] = field(default_factory=dict)
    tried: int = 1


class Texts:
    """The windows of text of a run, and the problem to train a model on them."""

    def __init__(self, args: Any) -> None:
        self.args = args
        tokens: Tokens = synthetic() if args.quick else dict(np.load(args.data / "tokens.npz"))
        tuned, tested = (2, 4) if args.quick else (TUNED, TESTED)
        self.words = len(tokens["starts"])
        self.training = windows(tokens["train"]).to(args.device)
        self.development = windows(tokens["development"], tuned).to(args.device)
        sets = {name: windows(tokens[name], tested) for name in ("test", "shift")}
        sets["shuffled"] = shuffled(sets["test"], tokens["starts"])
        sets["German"] = windows(tokens["foreign"], tested)
        self.sets = {name: cut.to(args.device) for name, cut in sets.items()}

    def problem(self) -> Problem:
        """The language model and its training."""
        return Problem(self.build, self.train, [], [])

    def build(self) -> nn.Module:
        """An untrained model."""
        layers, width = (2, 32) if self.args.quick else (6, 256)
        config = GPT2Config(
            vocab_size=self.words,
            n_positions=CONTEXT,
            n_embd=width,
            n_layer=layers,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            loss_type="ForCausalLM",
        )
        return GPT2LMHeadModel(config).to(self.args.device)

    def train(self, model: nn.Module, variant: Variant, seed: int) -> None:
        """Trains a model."""
        torch.manual_seed(seed)
        train(model, self.epoch, self.args.steps, self.args.lr, weight_decay=0.1)

    def epoch(self) -> Iterator[dict[str, Tensor]]:
        """The training windows in random order."""
        rows = torch.randperm(len(self.training), device=self.training.device)
        for part in rows.split(BATCH):
            ids = self.training[part]
            yield {"input_ids": ids, "labels": ids}


class Comparison:
    """Fits methods and writes the results of each, without and with temperature scaling (TS).

    Args:
        texts: The data.
        models: The models, which all seeds share.
        seed: Seed of the trainings.
    """

    def __init__(self, texts: Texts, models: Models, seed: int) -> None:
        self.texts, self.models, self.seed = texts, models, seed
        self.development = texts.development
        self.samples = 2 if texts.args.quick else SAMPLES
        self.folder = texts.args.out / FOLDER

    def is_done(self, name: str) -> bool:
        """Whether the results are there."""
        return all(self.path(each).is_file() for each in (name, name + TS))

    def compare(self, name: str) -> None:
        """Fits a method and writes its results."""
        fitted = self.fit(name)
        for each in (name, name + TS):
            save(self.evaluate(each, fitted), self.path(each))

    def fit(self, name: str) -> Fitted:
        """A method with its settings chosen."""
        if name in NOISE:
            return self.random_attention(NOISE[name])
        fits = {
            "deterministic": self.deterministic,
            "MC dropout": self.mc_dropout,
            "BABN, not trained": self.random_attention,
            "ensemble": self.ensemble,
        }
        return fits[name]()

    def trainings(self, name: str) -> list[tuple[Variant, int]]:
        """The models of a method."""
        if name == "ensemble":
            return [(SOFTMAX, self.seed + APART * i) for i in range(MEMBERS)]
        return [(NOISE.get(name, SOFTMAX), self.seed)]

    def path(self, name: str) -> Path:
        """The file of a method's result."""
        return self.folder / f"{name.replace(' ', '-').replace(',', '')}-{self.seed}.json"

    def deterministic(self) -> Fitted:
        """One pass of the model."""
        model = self.models.get(SOFTMAX, self.seed)
        return Fitted(together([model]), Deterministic.code, [(SOFTMAX, self.seed)])

    def ensemble(self) -> Fitted:
        """One pass of each of several models."""
        trainings = self.trainings("ensemble")
        members = [self.models.get(*training) for training in trainings]
        return Fitted(together(members), Ensemble.code, trainings, MEMBERS)

    def mc_dropout(self) -> Fitted:
        """Passes with the dropout rate that has the lowest negative log likelihood."""
        model = babn.convert(self.models.get(SOFTMAX, self.seed), babn.SoftmaxConfig())

        def draw_at(rate: float) -> Draw:
            set_dropout(model, rate)
            return draws(model, self.samples if rate else 1, dropout=rate > 0)

        def nll(rate: float) -> float:
            return float(token_scores(draw_at(rate), self.development)["nll"].mean())

        rate = min(RATES, key=nll)
        settings = {"rate": rate}
        passes = self.samples if rate else 1
        trainings = [(SOFTMAX, self.seed)]
        return Fitted(draw_at(rate), McDropout.code, trainings, passes, settings, len(RATES))

    def random_attention(self, variant: Variant = SOFTMAX) -> Fitted:
        """Samples of attention at the noise level that `tune_noise` fits; BAM has its own."""
        model = self.models.get(variant, self.seed)
        if variant is SOFTMAX:
            babn.convert(model)
        tried = 1 if variant is NOISE["BAM"] else self.tune(model)
        level = babn.get_noise_level(model)
        passes = self.samples if level else 1
        trainings = [(variant, self.seed)]
        settings = {"level": level}
        return Fitted(
            draws(model, passes), RandomAttention.code, trainings, passes, settings, tried
        )

    def tune(self, model: nn.Module) -> int:
        """Fits a noise level, and returns the number of levels tried."""
        data = [{"input_ids": ids} for ids in self.development.split(AT_ONCE)]
        with half_precision(self.development), quiet():
            found = babn.tune_noise(
                model, data, samples=self.samples, memory=MEMORY, progress=False
            )
        return len(found.trials)

    def evaluate(self, name: str, fitted: Fitted) -> Result:
        """Measures of a method on all texts, and its costs."""
        scaled = name.endswith(TS)
        temperature = best_temperature(fitted.draw, self.development) if scaled else 1.0
        began = time.perf_counter()
        found = {
            part: token_scores(fitted.draw, cut, temperature)
            for part, cut in self.texts.sets.items()
        }
        seconds = time.perf_counter() - began
        scores = {part: as_examples(found[part]) for part in ("test", "shift")}
        measures = {part: each.measures() for part, each in scores.items()}
        for part in ("shuffled", "German"):
            detected = detection(found["test"], found[part], fitted.passes > 1)
            measures["test"] |= {f"{part} {name}": value for name, value in detected.items()}
        details = {
            "settings": {**fitted.settings, **({"temperature": temperature} if scaled else {})},
            "tried": fitted.tried,
            "cost": self.cost(fitted) | {"seconds": seconds},
        }
        return Result(name, self.seed, measures, scores, details)

    def cost(self, fitted: Fitted) -> dict[str, Any]:
        """Trainings, their time in units of the deterministic one, passes and lines of code."""
        each = [self.models.seconds(*training) for training in fitted.trainings]
        return {
            "trainings": len(each),
            "training": sum(each) / self.models.seconds(SOFTMAX, self.seed),
            "passes": fitted.passes,
            "memory": None,
            "lines": len(fitted.code.splitlines()),
        }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the advice to fit a noise level, which is done here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", babn.errors.BabnWarning)
        yield


def draws(model: nn.Module, samples: int, dropout: bool = False) -> Draw:
    """Samples of a converted model."""

    def draw(ids: Tensor) -> Tensor:
        inputs = {"input_ids": ids}
        with half_precision(ids), quiet():
            found = babn.predict(model, inputs, samples, dropout=dropout, memory=MEMORY)
        return found.sample_logits

    return draw


def together(members: list[nn.Module]) -> Draw:
    """The logits of several models as samples."""

    def draw(ids: Tensor) -> Tensor:
        with torch.no_grad(), half_precision(ids):
            return torch.stack([model(input_ids=ids).logits for model in members])

    return draw


def evaluations(comparisons: Sequence[Comparison], names: Sequence[str]) -> Iterator[Evaluation]:
    """The evaluations whose results are not there yet."""
    for name in names:
        for each in comparisons:
            if not each.is_done(name):
                do = partial(each.compare, name)
                yield Evaluation(name, each.seed, each.trainings(name), do)


def run(args: Any) -> None:
    """All methods and seeds."""
    settings = {"steps": args.steps, "lr": args.lr, "batch": BATCH, "context": CONTEXT}
    folder, texts = args.out / FOLDER, Texts(args)
    write_about(folder, "lm_text", "gpt2", settings, args.device)
    models = SharedModels(texts.problem(), args.weights)
    comparisons = [Comparison(texts, models, seed) for seed in args.seeds]
    work(schedule(models, evaluations(comparisons, args.methods)), folder)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder that text_data.py has written")
    parser.add_argument("--methods", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="folder of trained models, to share them")
    parser.add_argument("--steps", type=int, default=1200, help="steps of 64 windows")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quick", action="store_true", help="synthetic text and a tiny model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(arguments().parse_args())
