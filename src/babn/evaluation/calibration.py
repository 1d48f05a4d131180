"""Temperature scaling (Guo et al. 2017), for one answer or for samples of it."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from babn.errors import ConfigError
from babn.prediction.predict import Prediction
from babn.prediction.temperature import get_temperature, set_temperature

Model = TypeVar("Model", bound=nn.Module)

LOWEST, HIGHEST = -4.0, 4.0
"""Logarithms of the temperatures among which the best is looked for, 0.018 to 55."""

COARSE, FINE = 0.25, 1e-3
"""Distances between temperatures that are tried, of their logarithms, at first and in the end."""

PARTS = 16
"""Into how many parts each distance is divided by the next round."""

Losses = Callable[[float], Float[Tensor, "example"]]
"""The loss of each example at a temperature."""


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
    everything = torch.ones(1, labels.numel(), dtype=torch.bool)
    return best_temperatures(nll_losses(prediction.sample_logits, labels), everything)[0]


def nll_losses(
    logits: Float[Tensor, "sample *example label"], labels: Int[Tensor, "*example"]
) -> Losses:
    """Negative log likelihoods of the right answers under the mean of samples."""
    flat = logits.double().flatten(1, -2)
    right = labels.to(flat.device).flatten()[None, :, None].expand(len(flat), -1, 1)

    def losses(temperature: float) -> Float[Tensor, "example"]:
        chosen = (flat / temperature).log_softmax(-1).gather(-1, right).squeeze(-1)
        return math.log(len(chosen)) - chosen.logsumexp(0)

    return losses


def best_temperatures(losses: Losses, sets: Bool[Tensor, "set example"]) -> list[float]:
    """For each of some sets of examples the temperature at which their mean loss is smallest.

    A grid that becomes finer in each round where the sets' best temperatures are; then the vertex
    of the parabola through the best and its neighbours. All sets share what is computed.
    """
    weights = sets.double()
    step, low, high = COARSE, LOWEST, HIGHEST
    while True:
        places = torch.arange(round((high - low) / step) + 1, dtype=torch.float64) * step + low
        each = torch.stack([losses(math.exp(place)).double().cpu() for place in places.tolist()])
        found = each @ weights.T
        # An end of the range has a neighbour on one side only.
        best = found.argmin(0).clamp(1, len(places) - 2)
        if step <= FINE:
            return [
                math.exp(_vertex(places[at - 1 : at + 2], column[at - 1 : at + 2]))
                for at, column in zip(best.tolist(), found.T, strict=True)
            ]
        low, high = float(places[best.min()]) - step, float(places[best.max()]) + step
        step /= PARTS


def _vertex(places: Float[Tensor, "3"], losses: Float[Tensor, "3"]) -> float:
    """Where the parabola through three evenly spaced points is lowest; between the outer ones."""
    left, middle, right = losses.tolist()
    first, second = (right - left) / 2, right - 2 * middle + left
    shift = max(-1.0, min(1.0, -first / second)) if second > 0 else 0.0
    if second <= 0 and left != right:
        shift = -1.0 if left < right else 1.0
    return float(places[1] + shift * (places[2] - places[1]))
