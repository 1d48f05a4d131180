"""The interface of a method: fitting, predicting, and its cost."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.evaluation.temperature_scaling import bounded_temperature
from babn.metrics import accuracy, nll
from babn.prediction.result import Prediction
from babn_paper.method_comparison.trained_models import SOFTMAX, Batches, Models, Variant

MAX_ACCURACY_DROP = 0.003
"""Accuracy on development data that noise may cost, as in `babn.tune_noise`."""


@dataclass(frozen=True)
class Fitted:
    """A fitted method.

    Attributes:
        predict: Returns samples of logits for batches; deterministic.
        trainings: Variants and seeds of the models that it uses.
        passes: Forward passes of the model for one prediction.
        settings: Settings chosen on development data.
        tried: Number of settings tried on development data.
        novelty: Returns how unlike the training data each example is; `None` to use the entropy of
            the prediction.
    """

    predict: Callable[[Batches], Prediction]
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
        code: The lines that a user writes besides loading data and training the model.
    """

    name: str
    variant: Variant = SOFTMAX
    code: ClassVar[str] = ""

    def trainings(self, seed: int) -> list[tuple[Variant, int]]:
        """Variants and seeds of the models that the method uses."""
        return [(self.variant, seed)]

    @abstractmethod
    def fit(self, models: Models, seed: int) -> Fitted:
        """Gets the models of a seed and chooses settings on development data."""


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
    """Name of the setting in results."""

    @abstractmethod
    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """Returns a function that predicts batches with a given setting."""

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
    trials: Iterable[tuple[float, Prediction]],
    labels: Int[Tensor, "example"],
    temperature: bool,
) -> tuple[float, float]:
    """The setting with the lowest NLL that costs no accuracy, and its temperature.

    Settings are left out if their accuracy is more than `MAX_ACCURACY_DROP` below the first one's.

    Args:
        trials: Pairs of a setting and its prediction on development data.
        labels: The correct classes.
        temperature: Whether to fit a temperature for each setting; otherwise it is 1.
    """
    found: list[tuple[float, float, float, float]] = []  # NLL, accuracy, setting, temperature
    for setting, prediction in trials:
        fitted = bounded_temperature(prediction, labels) if temperature else 1.0
        probs = prediction.tempered(fitted).probs
        found.append((nll(probs, labels), accuracy(probs, labels), setting, fitted))
    least = found[0][1] - MAX_ACCURACY_DROP - 1e-9
    _, _, best, fitted = min(each for each in found if each[1] >= least)
    return best, fitted


def labels_of(batches: Batches) -> Int[Tensor, "example"]:
    """The labels of all batches, on the CPU."""
    return torch.cat([batch["labels"].flatten().cpu() for batch in batches])
