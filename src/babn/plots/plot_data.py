"""Validates the data of plots: predictions by method, and values over training steps."""

from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from babn.errors import ConfigError, MetricInputError
from babn.prediction.result import Prediction

Probabilities = Prediction | Tensor
Predictions = Mapping[str, Probabilities] | Probabilities
"""Probabilities or a prediction, of one method or by method name."""

Series = Sequence[Any] | Tensor | np.ndarray
"""One value for each step, as numbers or as tensors with a single element."""

STEP = "step"
"""Key of the step number in a record."""


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


def as_series(argument: str, values: Series) -> Float[np.ndarray, "step"]:
    """The values of one run, one for each step."""
    found = as_runs(argument, values)
    if len(found) > 1:
        raise ConfigError(
            f"{argument} holds {len(found)} runs. Give one number for each step, such as their "
            "mean."
        )
    return found[0]


def as_runs(argument: str, values: Series) -> Float[np.ndarray, "seed step"]:
    """The values of one or several runs, one row for each run."""
    try:
        found = np.asarray(_plain(values), dtype=float)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.ndim not in (1, 2) or not found.size:
        raise ConfigError(
            f"{argument} is {_outline(values)}. Give one number for each step, or a row of equal "
            "length for each seed."
        )
    return np.atleast_2d(found)


def step_numbers(steps: Series | None, length: int, argument: str) -> Float[np.ndarray, "step"]:
    """The step numbers of a series; by default counted from 1."""
    if steps is None:
        return np.arange(1.0, length + 1)
    found = as_series("steps", steps)
    if len(found) != length:
        raise ConfigError(
            f"steps has {len(found)} numbers and {argument} {length}. Give one step for each."
        )
    return found


def from_records(
    records: Sequence[Mapping[str, Any]], argument: str
) -> tuple[dict[str, list[Any]], list[Any] | None]:
    """Series by name, and step numbers if there are any, from one record for each step."""
    check_some(records, argument, "one mapping for each step")
    names = list(records[0])
    for i, record in enumerate(records):
        if list(record) != names:
            raise ConfigError(
                f"{argument}[{i}] holds {list(record)} and {argument}[0] {names}. Give the same "
                "names at every step, in the same order."
            )
    columns = {name: [record[name] for record in records] for name in names}
    return columns, columns.pop(STEP, None)


def _plain(values: Any) -> Any:
    """The values as nested lists."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64).tolist()
    return [_plain(each) for each in values] if isinstance(values, Sequence) else values


def _outline(values: Any) -> str:
    shape = getattr(values, "shape", None)
    return f"of shape {tuple(shape)}" if shape is not None else f"{values!r:.60}"
