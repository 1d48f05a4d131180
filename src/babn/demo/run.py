"""The demo from beginning to end: train three copies of a model, ask them, compare the answers."""

import copy
import statistics
from dataclasses import dataclass, replace

import torch
from torch import nn

import babn
from babn.attention.rule import RuleConfig
from babn.data import intents
from babn.demo import choices, models
from babn.demo.batches import Batch, Tokenizer, make_batches
from babn.demo.evaluation import Answers, Texts, answer
from babn.demo.outcome import Attempt, Outcome, Settings, rows
from babn.demo.portrait import portraits
from babn.demo.training import Recipe, Step, train
from babn.evaluation.comparison import Difference
from babn.watch import Watch


def run(settings: Settings, watch: Watch) -> Outcome:
    """Trains and asks one copy of the same model for each rule."""
    names = intents.intent_names()
    # Sampling takes most of the time, and every third text without a right answer tells enough.
    unanswerable = intents.out_of_scope("test")[::3], intents.ambiguous()[::3]
    texts = Texts(intents.in_scope("test"), *unanswerable)
    source = find_source(settings)
    stage = set_up(settings, source, texts, watch)
    attempts = []
    for name, config in choices.RULES.items():
        model = babn.convert(copy.deepcopy(stage.base), config, stage.batches[0])
        attempts.append(stage.attempt(name, model, config))
    first, last = attempts[0].fullest, attempts[-1].fullest
    return Outcome(
        settings=settings,
        source=source,
        recipe=stage.recipe,
        intents=names,
        texts=texts,
        attempts=attempts,
        rows=[row for each in attempts for row in rows(each, texts, names)],
        differences=differences(last, first, texts, settings.seed),
        portraits=portraits(model, stage.tokenizer, last, texts, names),
    )


def differences(ours: Answers, theirs: Answers, texts: Texts, seed: int) -> dict[str, Difference]:
    """How two rules differ in some measures, with intervals from drawing the texts anew."""
    labels = torch.tensor(texts.clear.labels)
    both = {"theirs": theirs, "ours": ours}
    evaluations = [
        babn.Evaluation(name, each.clear, labels, outside=each.outside)
        for name, each in both.items()
    ]
    found = babn.compare(evaluations, bins=choices.BINS, resamples=1000, seed=seed)
    return {called: found.differences["ours"][name] for name, called in choices.MEASURES.items()}


def find_source(settings: Settings) -> models.Source:
    """The model to use; a quick run makes do with the small one."""
    return models.find_source("small" if settings.quick else settings.model)


def pick_recipe(settings: Settings, source: models.Source) -> Recipe:
    """How to train it, with the user's number of epochs if there is one."""
    recipe = choices.SMALL if source.folder is None else choices.PRETRAINED
    recipe = choices.QUICK if settings.quick else recipe
    return replace(recipe, epochs=settings.epochs or recipe.epochs)


@dataclass(frozen=True)
class Stage:
    """What the attempts have in common."""

    base: nn.Module
    tokenizer: Tokenizer
    batches: list[Batch]
    recipe: Recipe
    texts: Texts
    seed: int
    watch: Watch

    def attempt(self, name: str, model: nn.Module, config: RuleConfig) -> Attempt:
        """Trains a converted model and asks it about all texts."""
        noisy = config.rule != "softmax"
        self.watch.begin(f"{name}: training", len(self.batches))
        seconds = train(model, self.batches, self.recipe, self.seed, self._report_training)
        texts = len(self.texts.all())
        self.watch.begin(f"{name}: testing", texts * (1 + choices.SAMPLES * noisy))
        return Attempt(
            name,
            config,
            statistics.median(seconds),
            self._ask(model, None),
            self._ask(model, choices.SAMPLES) if noisy else None,
        )

    def _ask(self, model: nn.Module, samples: int | None) -> Answers:
        def report(count: int) -> None:
            self.watch.step(count * (samples or 1))

        return answer(model, self.tokenizer, self.texts, samples, self.seed, report)

    def _report_training(self, step: Step) -> None:
        self.watch.step(1, f"loss {step.loss:.2f}  kl {step.kl:.2f}")


def set_up(settings: Settings, source: models.Source, texts: Texts, watch: Watch) -> Stage:
    """The model before conversion, its tokenizer and the batches that every copy is trained on."""
    training, seed = intents.in_scope("train"), settings.seed
    recipe = pick_recipe(settings, source)
    base, tokenizer = models.load(source, training.texts, len(intents.intent_names()), seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, epochs = recipe.batch_size, recipe.epochs
    batches = make_batches(tokenizer, training, size, epochs, seed, device)
    return Stage(base.to(device), tokenizer, batches, recipe, texts, seed, watch)
