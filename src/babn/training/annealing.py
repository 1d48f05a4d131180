"""Schedules for the weight of the divergence."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from babn.conversion.state import belief_states
from babn.errors import ConfigError
from babn.training.divergence import set_kl_weight
from babn.validation import check_at_least, check_choices, check_count


@dataclass(frozen=True, kw_only=True)
class KLAnnealing:
    """How the weight of the divergence grows over training.

    Attributes:
        schedule: `"constant"`; `"linear"` from `start` to `weight`; `"sigmoid"` between the same;
            `"cyclic"`, linear again and again (Fu et al., 2019).
        weight: The weight at the end of the growth; by default `kl_weight` of the model's
            configuration.
        start: The weight at the beginning.
        warmup: Fraction of training, or of each cycle, over which the weight grows.
        cycles: Number of cycles.

    Example:
        >>> KLAnnealing(weight=1.0, warmup=0.5).at(step=25, total=100)
        0.5
    """

    schedule: Literal["constant", "linear", "sigmoid", "cyclic"] = "linear"
    weight: float | None = None
    start: float = 0.0
    warmup: float = 0.5
    cycles: int = 4

    def __post_init__(self) -> None:
        """Refuses values that cannot work."""
        check_choices(self)
        if self.weight is not None:
            check_at_least("weight", self.weight, 0.0)
        check_at_least("start", self.start, 0.0)
        check_count("cycles", self.cycles)
        if not 0 < self.warmup <= 1:
            raise ConfigError(f"warmup={self.warmup!r} is not possible. Give a fraction in (0, 1].")

    def at(self, step: int, total: int) -> float:
        """The weight at a step of `total` steps."""
        if self.weight is None:
            raise ConfigError(
                "weight=None is that of a model. Give a number, or call apply(model)."
            )
        total = max(total, 1)
        step = min(max(step, 0), total)
        if self.schedule == "cyclic" and step < total:
            step = step * self.cycles % total  # whole numbers, so that cycles begin on time
        progress = step / total
        growth = min(progress / self.warmup, 1.0)
        if self.schedule == "constant":
            growth = 1.0
        elif self.schedule == "sigmoid":
            growth = _sigmoid(growth)
        return self.start + (self.weight - self.start) * growth

    def apply(self, model: nn.Module, step: int, total: int) -> float:
        """Sets the model's weight for a step, and returns it."""
        weight = belief_states(model)[0].config.kl_weight if self.weight is None else self.weight
        now = replace(self, weight=weight).at(step, total)
        set_kl_weight(model, now)
        return now


def _sigmoid(growth: float) -> float:
    """A logistic curve through (0, 0), (1/2, 1/2) and (1, 1)."""
    lowest = 1 / (1 + math.exp(6))
    value = 1 / (1 + math.exp(6 - 12 * growth))
    return (value - lowest) / (1 - 2 * lowest)


def rise_and_fall(step: int, steps: int, warmup: int) -> float:
    """The share of its peak that a rate has at a step: growing over the warmup, then falling."""
    warmup = max(1, min(warmup, steps))
    return min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))
