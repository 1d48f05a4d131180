"""The interface of a method: fitting, predicting, and its cost."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn import metrics
from babn.evaluation.temperature_scaling import bounded_temperature
from babn.methods.trained_models import SOFTMAX, Batches, Models, Problem, Variant
from babn.prediction.result import Prediction

__all__ = ["Fitted", "Method", "Problem", "TunedMethod", "choose", "labels_of"]

MAX_ACCURACY_DROP = 0.003
"""Accuracy on development data that noise may cost, as in `babn.tune_noise`."""

Predict = Callable[[Batches], Prediction]


@dataclass(frozen=True)
class Fitted:
    """A fitted method.

    Attributes:
        predict: Samples of logits for batches, the same for the same inputs.
        trainings: Variants and seeds of the models that it uses.
        passes: Forward passes of the model for one prediction.
        settings: What was chosen on development data.
        tried: How many settings were tried on development data.
        novelty: How unlike the training data each example is; `None` for the entropy of the
            prediction.
    """

    predict: Predict
    trainings: Sequence[tuple[Variant, int]]
    passes: int = 1
    settings: Mapping[str, float] = field(default_factory=dict)
    tried: int = 1
    novelty: Callable[[Batches], Float[Tensor, "example"]] | None = None


class Method(ABC):
    """A method of uncertainty.

    Attributes:
        name: Name in tables.
        variant: The training of its model.
        code: The lines that a user writes, beside loading data and training the model.
    """

    name: str
    variant: Variant = SOFTMAX
    code: ClassVar[str] = ""

    def trainings(self, seed: int) -> list[tuple[Variant, int]]:
        """Variants and seeds of the models that the method uses."""
        return [(self.variant, seed)]

    @abstractmethod
    def fit(self, models: Models, seed: int) -> Fitted:
        """Trains or gets the models of a seed, and chooses settings on development data."""


@dataclass(frozen=True)
class TunedMethod(Method):
    """A method with one setting, chosen on development data.

    Attributes:
        name: Name in tables.
        temperature: Whether to fit a temperature as well.
        candidates: The settings to try, in ascending order of noise; the first has none.
    """

    name: str
    temperature: bool = False
    candidates: Sequence[float] = (0.0,)

    setting: ClassVar[str] = "setting"
    """What the setting is called in results."""

    @abstractmethod
    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """A function that predicts with a setting."""

    def passes(self, setting: float) -> int:
        """Forward passes for one prediction with a setting."""
        return 1

    def fit(self, models: Models, seed: int) -> Fitted:
        """Tries the candidates on development data."""
        predict, data = self.predictor(models, seed), models.problem.development
        trials = ((each, predict(each, data)) for each in self.candidates)
        chosen, temperature = choose(trials, labels_of(data), self.temperature)
        settings = {self.setting: chosen} if len(self.candidates) > 1 else {}
        settings |= {"temperature": temperature} if self.temperature else {}
        return Fitted(
            lambda batches: predict(chosen, batches).tempered(temperature),
            self.trainings(seed),
            self.passes(chosen),
            settings,
            len(self.candidates),
        )


def choose(
    trials: Mapping[float, Prediction] | Iterable[tuple[float, Prediction]],
    labels: Int[Tensor, "example"],
    temperature: bool,
) -> tuple[float, float]:
    """The setting with the lowest NLL that costs no accuracy, and its temperature.

    Accuracy may drop by `MAX_ACCURACY_DROP` from that of the first setting.

    Args:
        trials: Settings and predictions on development data, of which one is kept at a time.
        labels: The correct classes.
        temperature: Whether predictions are divided by a fitted temperature; otherwise it is 1.
    """
    found: list[tuple[float, float, float, float]] = []  # NLL, accuracy, setting, temperature
    for setting, prediction in trials.items() if isinstance(trials, Mapping) else trials:
        fitted = bounded_temperature(prediction, labels) if temperature else 1.0
        probs = prediction.tempered(fitted).probs
        measured = metrics.nll(probs, labels), metrics.accuracy(probs, labels)
        found.append((*measured, setting, fitted))
    least = found[0][1] - MAX_ACCURACY_DROP - 1e-9
    _, _, best, fitted = min(each for each in found if each[1] >= least)
    return best, fitted


def labels_of(batches: Batches) -> Int[Tensor, "example"]:
    """The labels of all batches, on the CPU."""
    return torch.cat([batch["labels"].flatten().cpu() for batch in batches])
