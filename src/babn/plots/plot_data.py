"""Validates the data of plots: predictions by method."""

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float
from torch import Tensor

from babn.errors import ConfigError, MetricInputError
from babn.prediction.result import Prediction

Probabilities = Prediction | Tensor
Predictions = Mapping[str, Probabilities] | Probabilities
"""Probabilities or a prediction, of one method or by method name."""


def by_method(predictions: Predictions) -> dict[str, Probabilities]:
    """Predictions by method name; a single method has the empty name."""
    if not isinstance(predictions, Mapping):
        return {"": predictions}
    check_some(predictions, "predictions", "a mapping from names to probabilities")
    return dict(predictions)


def check_some(values: Sized, argument: str, remedy: str) -> None:
    """Validates that a collection is not empty."""
    if not len(values):
        raise ConfigError(f"{argument} is empty, so there is nothing to draw. Give {remedy}.")


def check_index(argument: str, value: int, count: int, owner: str) -> None:
    """Validates that an index is from 0 to `count` - 1."""
    if isinstance(value, bool) or not 0 <= value < count:
        raise ConfigError(
            f"{argument}={value!r} does not exist: {owner} 0 to {count - 1}. Give one of those."
        )


@contextmanager
def naming(argument: str, name: str) -> Iterator[None]:
    """Adds the name of the method to errors of metrics."""
    try:
        yield
    except MetricInputError as error:
        place = f"{argument}[{name!r}]" if name else argument
        raise MetricInputError(f"{place}: {error}") from error


def as_array(values: Float[Tensor, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The values as a NumPy array."""
    return values.detach().cpu().double().numpy()
