"""Overrides of how a converted model computes its forward passes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from babn.attention.noise_source import GLOBAL_NOISE, NoiseLike
from babn.attention.posterior import Posterior
from babn.conversion.state import BeliefState, belief_states
from babn.elbo import Counted

Mode = Literal["mean", "sample"]


@dataclass(frozen=True)
class Override:
    """Options of a forward pass that override what the model's mode implies.

    Attributes:
        mode: Posterior mean or samples; by default samples in training and the mean otherwise.
        noise_source: The noise source of samples.
        record_kl: Whether to compute the KL in evaluation mode without gradients too.
        counted: Maps the number that a KL is divided by, to average over several processes.
        add_kl: Whether the KL is added to the loss in training.
        posteriors: A list to which the posterior of every call is appended.
        memory: A list to which the temporary memory of every call is appended, in bytes.
    """

    mode: Mode | None = None
    noise_source: NoiseLike = GLOBAL_NOISE
    record_kl: bool = False
    counted: Counted | None = None
    add_kl: bool = True
    posteriors: list[tuple[str, Posterior]] | None = None
    memory: list[int] | None = None


NO_OVERRIDE = Override()
"""Samples in training, the mean otherwise. One object, to which torch.compile can refer."""


class _Local(threading.local):
    """Each thread has its own overrides, so one model can serve several threads."""

    def __init__(self) -> None:
        self.overrides: list[tuple[BeliefState, Override]] = []


_local = _Local()


def active_override(state: BeliefState) -> Override:
    """The override of the innermost `overriding` of this thread for a state."""
    for owner, override in reversed(_local.overrides):
        if owner is state:
            return override
    return NO_OVERRIDE


@contextmanager
def overriding(model: nn.Module, **changes: Any) -> Iterator[None]:
    """Changes fields of the override of a converted model, in this thread."""
    states = belief_states(model)
    _local.overrides += [(state, replace(active_override(state), **changes)) for state in states]
    try:
        yield
    finally:
        del _local.overrides[-len(states) :]
