"""Temperature scaling (Guo et al. 2017), for one answer or for samples of it."""

import math
from collections.abc import Callable
from typing import TypeVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from babn import metrics
from babn.errors import ConfigError
from babn.prediction.predict import Prediction
from babn.prediction.temperature import get_temperature, set_temperature

Model = TypeVar("Model", bound=nn.Module)

LOWEST, HIGHEST = -4.0, 4.0
"""Logarithms of the temperatures among which the best is looked for, 0.018 to 55."""

GRID, STEPS = 33, 40
"""Temperatures that are tried first, and steps that then narrow the interval down to 1e-9."""

GOLDEN = (5**0.5 - 1) / 2


def calibrate(
    model: Model,
    prediction: Prediction | Float[Tensor, "*example label"],
    labels: Int[Tensor, "*example"],
) -> Model:
    """Fits the model's temperature to answers that it gave on development data.

    Args:
        model: A converted model; its temperature is changed, and saved with it.
        prediction: What `predict` gave for it, or logits at the posterior mean.
        labels: The right answers.
    """
    # A prediction has been divided by the temperature that the model had before; logits have not.
    before = get_temperature(model) if isinstance(prediction, Prediction) else 1.0
    set_temperature(model, before * fit_temperature(prediction, labels))
    return model


def fit_temperature(
    prediction: Prediction | Float[Tensor, "*example label"], labels: Int[Tensor, "*example"]
) -> float:
    r"""The temperature $T$ with the smallest negative log likelihood.

    $$-\sum_i \log \frac1S \sum_s \mathrm{softmax}(z_{si} / T)_{y_i}$$

    Args:
        prediction: Samples of logits $z$, or logits by themselves.
        labels: The right answers $y$.
    """
    if isinstance(prediction, Tensor):
        prediction = Prediction(prediction.unsqueeze(0))
    if prediction.activation != "softmax":
        raise ConfigError(
            f"activation={prediction.activation!r} has no temperature. Pass the prediction of a "
            "classifier whose classes exclude each other."
        )
    answers = Prediction(prediction.sample_logits.double())

    return best_temperature(lambda t: metrics.nll(answers.tempered(t).probs, labels))


def best_temperature(loss: Callable[[float], float]) -> float:
    """The temperature at which a loss is smallest."""
    return math.exp(_minimum(lambda log_temperature: loss(math.exp(log_temperature))))


def _minimum(loss: Callable[[float], float]) -> float:
    """Where a function of one number is smallest: a grid, then golden sections."""
    step = (HIGHEST - LOWEST) / (GRID - 1)
    places = [LOWEST + i * step for i in range(GRID)]
    best = min(places, key=loss)
    low, high = best - step, best + step
    for _ in range(STEPS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return (low + high) / 2
