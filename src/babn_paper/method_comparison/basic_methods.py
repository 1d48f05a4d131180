"""Deterministic models, Monte Carlo dropout and deep ensembles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from babn.devices import device_of
from babn.evaluation.novelty import fit_novelty
from babn.evaluation.predictions import ensemble
from babn.prediction.batches import placed_batches, without_targets
from babn.prediction.predict import find_logits, following_seed
from babn.prediction.result import Prediction
from babn.prediction.sampling import evaluating
from babn_paper.method_comparison.interface import Fitted, Method, TunedMethod, choose, labels_of
from babn_paper.method_comparison.trained_models import SOFTMAX, Batches, Models, Variant

SAMPLES = 20
"""Number of forward passes of methods that sample."""

RATES = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Dropout rates that are tried."""

APART = 1000
"""Distance between the seeds of an ensemble's members, so that ensembles share no member."""


def sampled(
    model: nn.Module, batches: Batches, samples: int = 1, noisy: bool = False
) -> Prediction:
    """Logits of several forward passes, on the CPU.

    Args:
        model: The model.
        batches: Its inputs; labels are ignored.
        samples: Number of passes.
        noisy: Whether the model is in training mode, in which dropout and stochastic layers are
            random.
    """
    found = []
    with torch.no_grad(), evaluating(model, noisy), following_seed(0, model):
        for batch in placed_batches(batches, device_of(model)):
            inputs = without_targets(batch)
            passes = [find_logits(model(**inputs)).float().cpu() for _ in range(samples)]
            found.append(torch.stack(passes))
    return Prediction(torch.cat(found, 1))


@dataclass(frozen=True)
class Deterministic(TunedMethod):
    """One forward pass of one model: softmax probabilities.

    Attributes:
        variant: The training, such as one with label smoothing.
    """

    variant: Variant = SOFTMAX
    code: ClassVar[str] = "probs = model(**batch).logits.softmax(-1)"

    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """The model's logits."""
        model = models.get(self.variant, seed)
        return lambda _, batches: sampled(model, batches)


@dataclass(frozen=True)
class WithDistance(Deterministic):
    """The deterministic model, with `babn.fit_novelty` for examples unlike the training data."""

    code: ClassVar[str] = """probs = model(**batch).logits.softmax(-1)
detector = babn.fit_novelty(model, training_batches, development_batches)
p_values = detector.p_values(detector.distance(model, batch))"""

    def fit(self, models: Models, seed: int) -> Fitted:
        """Fits the novelty detector as well."""
        model, problem = models.get(self.variant, seed), models.problem
        detector = fit_novelty(model, problem.training, problem.development, progress=False)
        return replace(
            super().fit(models, seed),
            novelty=lambda batches: detector.distance(model, batches, progress=False),
        )


@dataclass(frozen=True)
class McDropout(TunedMethod):
    """Monte Carlo dropout with one rate for all dropout layers.

    [Gal & Ghahramani 2016](https://arxiv.org/abs/1506.02142).

    Attributes:
        samples: Number of forward passes.
    """

    candidates: Sequence[float] = RATES
    samples: int = SAMPLES
    setting: ClassVar[str] = "rate"
    code: ClassVar[str] = """model.train()
for module in model.modules():
    if isinstance(module, nn.Dropout):
        module.p = rate
with torch.no_grad():
    probs = torch.stack([model(**batch).logits.softmax(-1) for _ in range(20)]).mean(0)"""

    def passes(self, setting: float) -> int:
        """One pass for each sample; one without dropout."""
        return self.samples if setting else 1

    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """Passes with dropout."""
        model = models.get(self.variant, seed)

        def predict(rate: float, batches: Batches) -> Prediction:
            set_dropout(model, rate)
            return sampled(model, batches, self.passes(rate), noisy=rate > 0)

        return predict


def set_dropout(model: nn.Module, rate: float) -> None:
    """Sets the rate of all dropout layers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate


@dataclass(frozen=True)
class Ensemble(Method):
    """The mean prediction of several trainings.

    [Lakshminarayanan et al. 2017](https://arxiv.org/abs/1612.01474).

    Attributes:
        name: Name in tables.
        member: The method of each member.
        size: Number of members; the first has the seed itself.
        temperature: Whether to fit a temperature for the whole ensemble.
    """

    name: str
    member: Method
    size: int = 5
    temperature: bool = False
    code: ClassVar[str] = """models = [train(seed) for seed in range(5)]
probs = torch.stack([model(**batch).logits.softmax(-1) for model in models]).mean(0)"""

    def seeds(self, seed: int) -> list[int]:
        """The seeds of the members."""
        return [seed + APART * i for i in range(self.size)]

    def trainings(self, seed: int) -> list[tuple[Variant, int]]:
        """The models of all members."""
        return [each for own in self.seeds(seed) for each in self.member.trainings(own)]

    def fit(self, models: Models, seed: int) -> Fitted:
        """Fits every member, and then the temperature."""
        members = [self.member.fit(models, own) for own in self.seeds(seed)]

        def joined(batches: Batches) -> Prediction:
            return ensemble(_equal_samples([member.predict(batches) for member in members]))

        data, temperature = models.problem.development, 1.0
        if self.temperature:
            _, temperature = choose([(0.0, joined(data))], labels_of(data), True)
        return Fitted(
            lambda batches: joined(batches).tempered(temperature),
            self.trainings(seed),
            sum(member.passes for member in members),
            {"temperature": temperature} if self.temperature else {},
            sum(member.tried for member in members),
        )


def _equal_samples(found: Sequence[Prediction]) -> list[Prediction]:
    """Repeats the sample of deterministic members, so that all have equally many."""
    most = max(len(each.sample_logits) for each in found)
    return [
        Prediction(each.sample_logits.repeat(most // len(each.sample_logits), 1, 1))
        for each in found
    ]
