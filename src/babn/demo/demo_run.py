"""The demo from beginning to end: fine-tune, convert, tune the noise, predict, compare."""

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import babn
from babn.data import intents
from babn.demo import choices, models
from babn.demo.examples import choose_examples
from babn.demo.models import fine_tune
from babn.demo.outcome import (
    Novelty,
    Outcome,
    Row,
    Settings,
    Texts,
    evaluations,
    predictions,
    score,
)
from babn.errors import BabnWarning
from babn.evaluation.comparison import Difference
from babn.progress import Progress
from babn.training.fine_tuning import Recipe

SOFTMAX, SCALED, DROPOUT = "softmax", "softmax, temperature", "softmax, MC dropout"
UNTRAINED, TRAINED = "BABN, no training", "BABN, trained"


def run(settings: Settings, progress: Progress) -> Outcome:
    """Compares a softmax classifier with the same one converted, and with one trained as BABN."""
    with warnings.catch_warnings():
        # Where samples agree, the noise level in the table shows it.
        warnings.simplefilter("ignore", BabnWarning)
        return _run(settings, progress)


def _run(settings: Settings, progress: Progress) -> Outcome:
    source, names = find_source(settings), intents.intent_names()
    recipe = pick_recipe(settings, source)
    training = intents.in_scope("train")
    base, tokenizer = models.load(source, training.texts, len(names), settings.seed)
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
    """Test texts; of those without one right intent every third, since sampling takes time."""
    unanswerable = intents.out_of_scope("test")[::3], intents.ambiguous()[::3]
    return Texts(intents.in_scope("test"), *unanswerable)


def find_source(settings: Settings) -> models.Source:
    """The model to use; the small one in a quick run."""
    return models.find_source("small" if settings.quick else settings.model)


def pick_recipe(settings: Settings, source: models.Source) -> Recipe:
    """The recipe of a model, with the user's number of epochs if given."""
    recipe = choices.SMALL if source.folder is None else choices.PRETRAINED
    recipe = choices.QUICK if settings.quick else recipe
    return replace(recipe, epochs=settings.epochs or recipe.epochs)


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

        fine_tune(model, self.tokenizer, data, self.recipe, self.seed, report)
        return model

    def convert(self, model: nn.Module) -> nn.Module:
        """Makes attention stochastic, with the default settings."""
        texts = list(intents.in_scope("train").texts[:2])
        example = self.tokenizer(texts, padding=True, return_tensors="pt")
        return babn.convert(model, example_inputs=example.to(next(model.parameters()).device))

    def without_training(self, model: nn.Module) -> list[Row]:
        """Rows of a fine-tuned softmax classifier, and of the same converted."""
        self.convert(model)
        babn.set_noise_level(model, 0.0)  # softmax attention, bit for bit
        softmax = self._test(SOFTMAX, model, 1)
        return [
            softmax,
            self._scaled(softmax, model),
            self._test(DROPOUT, model, choices.SAMPLES, dropout=True),
            self.tuned(UNTRAINED, model),
        ]

    def _scaled(self, softmax: Row, model: nn.Module) -> Row:
        """Softmax with temperature scaling on the development texts."""
        data, settings = intents.in_scope("dev"), {"tokenizer": self.tokenizer, "progress": False}
        found = babn.predict(model, data.texts, 1, **settings)
        temperature = babn.fit_temperature(found.to("cpu"), torch.tensor(data.labels))
        scaled = softmax.predictions.tempered(temperature)
        return Row(SCALED, scaled, score(scaled, self.texts), None)

    def tuned(self, name: str, model: nn.Module) -> Row:
        """Fits noise and temperature to the development texts, and predicts the test texts."""
        self.progress.begin(f"{name}: noise level", 1)
        data, samples = intents.in_scope("dev"), choices.TUNING_SAMPLES
        settings = {"tokenizer": self.tokenizer, "samples": samples, "progress": False}
        found = babn.tune_noise(model, data.texts, data.labels, **settings)
        self.progress.step(1, f"level {found.level:.2f}")
        return replace(self._test(name, model, choices.SAMPLES), level=found.level)

    def novelty(self, model: nn.Module) -> Novelty:
        """How well a model's features tell out-of-scope from clear texts."""
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
        return Row(name, found, score(found, self.texts), None)


def differences(rows: list[Row], texts: Texts, seed: int) -> dict[str, dict[str, Difference]]:
    """How each row differs from the first, with intervals from resampling the texts."""
    compared = babn.compare(evaluations(rows, texts), bins=choices.BINS, resamples=400, seed=seed)
    return {
        name: {called: each[measure] for measure, called in choices.MEASURES.items()}
        for name, each in compared.differences.items()
    }
