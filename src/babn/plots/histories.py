"""Numbers over training steps, as the plots take them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from babn.errors import ConfigError
from babn.plots.answers import check_some

Series = Sequence[Any] | Tensor | np.ndarray
"""One number for each step; as numbers, or as tensors with a single element."""

STEP = "step"
"""The entry of a record that holds its step number."""


def as_series(argument: str, values: Series) -> Float[np.ndarray, "step"]:
    """One run: a number for each step."""
    found = as_runs(argument, values)
    if len(found) > 1:
        raise ConfigError(
            f"{argument} holds {len(found)} runs. Give one number for each step, such as their "
            "mean."
        )
    return found[0]


def as_runs(argument: str, values: Series) -> Float[np.ndarray, "seed step"]:
    """One or several runs: a number for each step, or a row of them for each seed."""
    try:
        found = np.asarray(_plain(values), dtype=float)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.ndim not in (1, 2) or not found.size:
        raise ConfigError(
            f"{argument} is {_outline(values)}. Give one number for each step, or for each seed as "
            "many numbers as for the others."
        )
    return np.atleast_2d(found)


def step_numbers(steps: Series | None, length: int, argument: str) -> Float[np.ndarray, "step"]:
    """The steps of a series of that length; counted from 1 if they are not given."""
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
    """Series by name, and step numbers if the records hold them, from one record for each step."""
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
    """Nested lists of numbers, from whatever holds them."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", torch.float64).tolist()
    return [_plain(each) for each in values] if isinstance(values, Sequence) else values


def _outline(values: Any) -> str:
    shape = getattr(values, "shape", None)
    return f"of shape {tuple(shape)}" if shape is not None else f"{values!r:.60}"
