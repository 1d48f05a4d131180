"""Temperature scaling of deterministic or sampled predictions.

Guo et al. 2017, <https://arxiv.org/abs/1706.04599>.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from babn.errors import ConfigError
from babn.metrics.accuracy_nll_brier import accuracy
from babn.prediction.result import Prediction
from babn.prediction.stored_settings import get_temperature, set_temperature

Model = TypeVar("Model", bound=nn.Module)

UNIT = 2.0**-10
"""Spacing of the search grid of log temperatures."""

HIGHEST = 4096
"""Largest absolute log temperature in units: temperatures are between exp(-4) and exp(4)."""

STRIDES = (256, 16, 1)
"""Grid spacing of each round, in units."""

Losses = Callable[[float], Float[Tensor, "example"]]
"""The loss of each example at a temperature."""


def calibrate(
    model: Model,
    prediction: Prediction | Float[Tensor, "*example label"],
    labels: Int[Tensor, "*example"],
) -> Model:
    """Fits the model's temperature to its predictions on development data.

    Args:
        model: A converted model; its temperature is changed, and saved with it.
        prediction: The result of `predict`, or logits at the posterior mean.
        labels: The correct classes.
    """
    # Predictions have been divided by the current temperature; logits have not.
    before = get_temperature(model) if isinstance(prediction, Prediction) else 1.0
    set_temperature(model, before * fit_temperature(prediction, labels))
    return model


def fit_temperature(
    prediction: Prediction | Float[Tensor, "*example label"], labels: Int[Tensor, "*example"]
) -> float:
    r"""The temperature $T$ with the lowest negative log likelihood.

    $$-\sum_i \log \frac1S \sum_s \mathrm{softmax}(z_{si} / T)_{y_i}$$

    Args:
        prediction: Samples of logits $z$, or logits of a deterministic model.
        labels: The correct classes $y$.
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


def bounded_temperature(prediction: Prediction, labels: Int[Tensor, "example"]) -> float:
    """The fitted temperature; at least 1 if all are correct, where the NLL has no minimum."""
    temperature = fit_temperature(prediction, labels)
    return max(temperature, 1.0) if accuracy(prediction, labels) == 1 else temperature


def nll_losses(
    logits: Float[Tensor, "sample *example label"], labels: Int[Tensor, "*example"]
) -> Losses:
    """Negative log likelihood of each label under the mean of the samples."""
    flat = logits.double().flatten(1, -2)
    right = labels.to(flat.device).flatten()[None, :, None].expand(len(flat), -1, 1)

    def losses(temperature: float) -> Float[Tensor, "example"]:
        chosen = (flat / temperature).log_softmax(-1).gather(-1, right).squeeze(-1)
        return math.log(len(chosen)) - chosen.logsumexp(0)

    return losses


def best_temperatures(losses: Losses, sets: Bool[Tensor, "set example"]) -> list[float]:
    """The temperature with the lowest mean loss for each set of examples.

    Searches a grid that is refined in each round around each set's best temperature, and then takes
    the vertex of the parabola through the best one and its neighbours. Losses are computed once for
    all sets.
    """
    weights = sets.double()
    known: dict[int, list[float]] = {}
    centres, width = [0] * len(sets), HIGHEST
    for stride in STRIDES:
        tried = [range(centre - width, centre + width + 1, stride) for centre in centres]
        for place in sorted(set().union(*tried) - known.keys()):
            known[place] = (weights @ losses(math.exp(place * UNIT)).double().cpu()).tolist()
        # The ends of the range have a neighbour on one side only.
        centres = [
            min((known[place][own], place) for place in places[1:-1])[1]
            for own, places in enumerate(tried)
        ]
        width = stride
    return [
        math.exp(UNIT * (at + _vertex([known[at + shift][own] for shift in (-1, 0, 1)])))
        for own, at in enumerate(centres)
    ]


def _vertex(losses: Sequence[float]) -> float:
    """Minimum of the parabola through values at -1, 0 and 1, within that range."""
    left, middle, right = losses
    first, second = (right - left) / 2, right - 2 * middle + left
    if second <= 0 and left != right:
        return -1.0 if left < right else 1.0
    return max(-1.0, min(1.0, -first / second)) if second > 0 else 0.0
