"""Deterministic models and Monte Carlo dropout, without and with temperature scaling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from babn.evaluation.novelty import fit_novelty
from babn.methods.interface import Fitted, TunedMethod
from babn.methods.trained_models import SOFTMAX, Batches, Models, Variant
from babn.prediction.batches import TARGETS, device_of, placed_batches
from babn.prediction.modes import evaluating
from babn.prediction.predict import find_logits, following_seed
from babn.prediction.result import Prediction

SAMPLES = 20
"""Forward passes of methods that sample."""

RATES = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Dropout rates that are tried."""


def sampled(
    model: nn.Module, batches: Batches, samples: int = 1, noisy: bool = False, seed: int = 0
) -> Prediction:
    """Logits of several forward passes, on the CPU.

    Args:
        model: The model.
        batches: Its inputs; labels are ignored.
        samples: Number of passes.
        noisy: Whether the model is in training mode, in which dropout and stochastic layers draw.
        seed: Seed of what they draw.
    """
    found = []
    with torch.no_grad(), evaluating(model, noisy), following_seed(seed, model):
        for batch in placed_batches(batches, device_of(model)):
            inputs = {name: value for name, value in batch.items() if name not in TARGETS}
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
        """Fits the detector of novelty as well."""
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
