"""The demo from beginning to end: fine-tune, convert, tune the noise, predict, compare.

Its settings are chosen on the development texts; `benchmarks/demo_settings.py` compares them over
several seeds.
"""

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

import babn
from babn.data import intents
from babn.demo import classifier
from babn.demo.outcome import (
    BINS,
    Example,
    Novelty,
    Outcome,
    Predictions,
    Row,
    Settings,
    Texts,
    evaluations,
    predictions,
    score,
)
from babn.devices import device_of
from babn.errors import BabnWarning
from babn.evaluation.comparison import Difference
from babn.prediction.batches import encode
from babn.progress import Progress
from babn.training.fine_tuning import Recipe, fine_tune, text_data

SAMPLES = 10
"""Samples of a prediction, the default of `babn.predict`; they take most of the demo's time."""

# With fewer samples the NLL is overestimated, and too low a level is chosen.
TUNING_SAMPLES = 8

EXAMPLE_SAMPLES = 100
"""Samples for a single sentence; shares and intervals need more samples than means do."""

MEASURES = {
    "accuracy": "accuracy",
    "NLL": "NLL",
    f"ECE-{BINS}": "ECE",
    "outside AUROC": "out-of-scope AUROC",
}
"""Measures by which BABN and softmax are compared, and their names in the demo."""

PRETRAINED = Recipe(epochs=4, rate=5e-4)

# With more epochs the NLL rises at the same accuracy.
SMALL = Recipe(epochs=10, rate=1e-3)

# A smoke test, too short to learn much.
QUICK = Recipe(epochs=3, rate=3e-3)

SOFTMAX, SCALED, DROPOUT = "softmax", "softmax, temperature", "softmax, MC dropout"
UNTRAINED, TRAINED = "BABN, no training", "BABN, trained"


def run(settings: Settings, progress: Progress) -> Outcome:
    """Compares a softmax classifier with the same one converted, and with one trained as BABN."""
    # If samples agree, the noise level in the table shows it.
    with warnings.catch_warnings(action="ignore", category=BabnWarning):
        return _run(settings, progress)


def _run(settings: Settings, progress: Progress) -> Outcome:
    source, names = find_source(settings), intents.intent_names()
    recipe = pick_recipe(settings, source)
    training = intents.in_scope("train")
    base, tokenizer = classifier.load(source, training.texts, len(names), settings.seed)
    base.config.id2label = dict(enumerate(names))
    trials = Trials(tokenizer, texts_to_test(), recipe, settings.seed, progress)
    model = trials.train(SOFTMAX, copy.deepcopy(base))
    rows = trials.without_training(model)
    found, novelty = rows[-1].predictions, trials.novelty(model)
    examples = choose_examples(model, tokenizer, found, trials.texts, names, settings.seed)
    rows.append(trials.tuned(TRAINED, trials.train(TRAINED, trials.convert(base))))
    return Outcome(
        settings=settings,
        source=source,
        recipe=recipe,
        texts=trials.texts,
        rows=rows,
        differences=differences(rows, trials.texts, settings.seed),
        examples=examples,
        view=babn.view(model, [each.text for each in examples], tokenizer=tokenizer),
        novelty=novelty,
    )


def texts_to_test() -> Texts:
    """The test texts; only every third out-of-scope and ambiguous text, to save time."""
    outside, ambiguous = intents.out_of_scope("test")[::3], intents.ambiguous()[::3]
    return Texts(intents.in_scope("test"), outside, ambiguous)


def find_source(settings: Settings) -> classifier.Source:
    """The model to use; the small one in a quick run."""
    return classifier.find_source("small" if settings.quick else "auto")


def pick_recipe(settings: Settings, source: classifier.Source) -> Recipe:
    """The recipe of a model."""
    if settings.quick:
        return QUICK
    return SMALL if source.folder is None else PRETRAINED


@dataclass(frozen=True)
class Trials:
    """Trains and tests models with the same data and settings."""

    tokenizer: Any
    texts: Texts
    recipe: Recipe
    seed: int
    progress: Progress

    def train(self, name: str, model: nn.Module) -> nn.Module:
        """Fine-tunes a model, converted or not."""
        data = intents.in_scope("train")
        steps = -(-len(data) // self.recipe.batch_size) * self.recipe.epochs
        self.progress.begin(f"{name}: training", steps)

        def report(logs: dict[str, float]) -> None:
            kl = f"  kl {logs['kl']:.2f}" if "kl" in logs else ""
            self.progress.step(1, f"loss {logs['loss']:.2f}{kl}")

        rows, collate = text_data(self.tokenizer, data.texts, data.labels)
        fine_tune(model, rows, collate, self.recipe, self.seed, report)
        return model

    def convert(self, model: nn.Module) -> nn.Module:
        """Makes attention stochastic, with the default settings."""
        texts = intents.in_scope("train").texts[:2]
        return babn.convert(model, example_inputs=encode(self.tokenizer, texts, device_of(model)))

    def without_training(self, model: nn.Module) -> list[Row]:
        """Results of a fine-tuned softmax classifier, before and after conversion."""
        self.convert(model)
        babn.set_noise_level(model, 0.0)  # softmax attention, bit for bit
        softmax = self._test(SOFTMAX, model, 1)
        return [
            softmax,
            self._scaled(softmax, model),
            self._test(DROPOUT, model, SAMPLES, dropout=True),
            self.tuned(UNTRAINED, model),
        ]

    def _scaled(self, softmax: Row, model: nn.Module) -> Row:
        """Softmax with temperature scaling on the development texts."""
        data = intents.in_scope("dev")
        found = babn.predict(model, data.texts, 1, tokenizer=self.tokenizer, progress=False)
        temperature = babn.fit_temperature(found.to("cpu"), torch.tensor(data.labels))
        scaled = Predictions(*(kind.tempered(temperature) for kind in softmax.predictions))
        return Row(SCALED, scaled, score(scaled, self.texts))

    def tuned(self, name: str, model: nn.Module) -> Row:
        """Fits noise and temperature to the development texts, and predicts the test texts."""
        self.progress.begin(f"{name}: noise level", 1)
        data, samples = intents.in_scope("dev"), TUNING_SAMPLES
        settings = {"tokenizer": self.tokenizer, "samples": samples, "progress": False}
        found = babn.tune_noise(model, data.texts, data.labels, **settings)
        self.progress.step(1, f"level {found.level:.2f}")
        return replace(self._test(name, model, SAMPLES), level=found.level)

    def novelty(self, model: nn.Module) -> Novelty:
        """Detection of out-of-scope texts by their distance from the training texts."""
        settings = {"tokenizer": self.tokenizer, "progress": False}
        known, held_out = intents.in_scope("train").texts, intents.in_scope("dev").texts
        detector = babn.fit_novelty(model, known, held_out, **settings)
        clear, outside = (
            detector.distance(model, kind, **settings)
            for kind in (self.texts.clear.texts, self.texts.outside)
        )
        flagged = (float((detector.p_values(x) <= 0.05).float().mean()) for x in (clear, outside))
        return Novelty(babn.metrics.auroc(clear, outside), *flagged)

    def _test(self, name: str, model: nn.Module, samples: int, dropout: bool = False) -> Row:
        self.progress.begin(f"{name}: testing", len(self.texts))
        found = predictions(
            model, self.tokenizer, self.texts, samples, self.seed, self.progress.step, dropout
        )
        return Row(name, found, score(found, self.texts))


def differences(rows: list[Row], texts: Texts, seed: int) -> dict[str, dict[str, Difference]]:
    """Differences of each row from the first, with intervals from resampling the texts."""
    compared = babn.compare(evaluations(rows, texts), bins=BINS, resamples=400, seed=seed)
    return {
        name: {called: each[measure] for measure, called in MEASURES.items()}
        for name, each in compared.differences.items()
    }


def choose_examples(
    model: nn.Module,
    tokenizer: Any,
    predictions: Predictions,
    texts: Texts,
    names: tuple[str, ...],
    seed: int,
) -> list[Example]:
    """The ambiguous text on which samples disagree most, and the correct clear one on which least.

    Measured by mutual information.
    """
    unsure = int(predictions.ambiguous.mutual_information.argmax())
    wrong = predictions.clear.probs.argmax(-1) != torch.tensor(texts.clear.labels)
    sure = int(predictions.clear.mutual_information.masked_fill(wrong, float("inf")).argmin())
    settings = {"tokenizer": tokenizer, "progress": False}

    def example(kind: Literal["sure", "unsure"], text: str) -> Example:
        found = babn.predict(model, [text], EXAMPLE_SAMPLES, seed, **settings).to("cpu")
        return Example(kind, text, names[int(found.probs[0].argmax())], found)

    return [example("sure", texts.clear.texts[sure]), example("unsure", texts.ambiguous[unsure])]
