"""Random attention: BAM and BABN, trained with it or converted afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn

from babn.attention.method import MethodConfig
from babn.conversion.convert import convert
from babn.devices import device_of
from babn.evaluation.noise_tuning import tune_noise
from babn.evaluation.temperature_scaling import fit_temperature
from babn.prediction.batches import placed_batches
from babn.prediction.predict import predict
from babn.prediction.result import Prediction
from babn.prediction.stored_settings import get_noise_level, get_temperature, set_temperature
from babn_paper.method_comparison.basic_methods import SAMPLES
from babn_paper.method_comparison.interface import Fitted, Method, labels_of
from babn_paper.method_comparison.trained_models import SOFTMAX, Batches, Models, Variant


def attention(name: str, config: MethodConfig) -> Variant:
    """The variant that is trained with an attention method."""
    return Variant(name, partial(convert, config=config))


@dataclass(frozen=True)
class RandomAttention(Method):
    """Samples of random attention.

    Attributes:
        name: Name in tables.
        variant: The training, with random attention or without.
        after: Adds random attention to the trained model, such as `babn.convert`.
        tuned: Whether `babn.tune_noise` fits the noise level.
        temperature: Whether to fit a temperature as well.
        samples: Number of samples.
    """

    name: str
    variant: Variant = SOFTMAX
    after: Callable[[nn.Module], nn.Module] | None = None
    tuned: bool = True
    temperature: bool = False
    samples: int = SAMPLES
    code: ClassVar[str] = """babn.convert(model)
babn.tune_noise(model, development_batches)
probs = babn.predict(model, batch).probs"""

    def model(self, models: Models, seed: int) -> nn.Module:
        """The trained model with random attention."""
        model = models.get(self.variant, seed)
        return model if self.after is None else self.after(model)

    def fit(self, models: Models, seed: int) -> Fitted:
        """Fits the noise level and the temperature, each if it is to be fitted."""
        model = self.model(models, seed)
        memory = models.problem.memory
        data = list(placed_batches(models.problem.development, device_of(model)))
        tried = 1
        if self.tuned:
            found = tune_noise(
                model,
                data,
                samples=self.samples,
                temperature=self.temperature,
                memory=memory,
                progress=False,
            )
            tried = len(found.trials)
        samples = self.samples if get_noise_level(model) else 1

        def predicted(batches: Batches) -> Prediction:
            # Independent samples, as those of MC dropout.
            settings: Any = {"antithetic": False, "memory": memory, "progress": False}
            return predict(model, batches, samples, **settings).to("cpu")

        if self.temperature and not self.tuned:
            set_temperature(model, fit_temperature(predicted(data), labels_of(data)))
        chosen = {"level": get_noise_level(model), "temperature": get_temperature(model)}
        return Fitted(predicted, self.trainings(seed), samples, chosen, tried)
