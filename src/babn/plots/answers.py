"""Answers of one or several methods, as the plots take them."""

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float
from torch import Tensor

from babn.errors import ConfigError, MetricInputError
from babn.prediction.predict import Prediction

Answer = Prediction | Tensor
Answers = Mapping[str, Answer] | Answer
"""Probabilities or a prediction, for one method or by the names of several."""


def by_method(answers: Answers) -> dict[str, Answer]:
    """Answers by the name of the method; a single method has the empty name."""
    if not isinstance(answers, Mapping):
        return {"": answers}
    check_some(answers, "answers", "a mapping from names to probabilities")
    return dict(answers)


def check_some(values: Sized, argument: str, remedy: str) -> None:
    """Refuses an empty collection."""
    if not len(values):
        raise ConfigError(f"{argument} is empty, so there is nothing to draw. Give {remedy}.")


@contextmanager
def naming(argument: str, name: str) -> Iterator[None]:
    """Says of which method a metric could not be computed."""
    try:
        yield
    except MetricInputError as error:
        place = f"{argument}[{name!r}]" if name else argument
        raise MetricInputError(f"{place}: {error}") from error


def as_array(values: Float[Tensor, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Values that matplotlib can draw."""
    return values.detach().cpu().double().numpy()
