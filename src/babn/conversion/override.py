"""What callers ask of the forward passes of a converted model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from babn.attention.fixed_noise import FixedNoise
from babn.attention.noise_source import GLOBAL_NOISE, NoiseSource
from babn.attention.rule import Posterior
from babn.conversion.state import BeliefState, belief_states
from babn.elbo import Counted

Mode = Literal["mean", "sample"]


@dataclass(frozen=True)
class Override:
    """What the caller of a forward pass asks for, in place of what the model's mode implies.

    Attributes:
        mode: Posterior mean or samples, in place of samples in training and the mean otherwise.
        noise_source: Where samples take their noise from.
        fixed_noise: Takes its place where the noise belongs to a text and not to a pass.
        record_kl: Whether divergences are computed although nothing else asks for them.
        counted: Makes of the number that a divergence is divided by another one, which stands for
            the batches of several processes.
        add_kl: Whether the divergence is added to the loss in training.
        posteriors: A list to which every call's posterior is added.
        memory: A list to which the bytes are added that every call takes while it works.
    """

    mode: Mode | None = None
    noise_source: NoiseSource = GLOBAL_NOISE
    fixed_noise: FixedNoise | None = None
    record_kl: bool = False
    counted: Counted | None = None
    add_kl: bool = True
    posteriors: list[tuple[str, Posterior]] | None = None
    memory: list[int] | None = None


NO_OVERRIDE = Override()
"""Samples in training, the mean otherwise. One object, which torch.compile can refer to."""


class _Local(threading.local):
    """Each thread has its own overrides, so one model can serve several threads."""

    def __init__(self) -> None:
        self.overrides: list[tuple[BeliefState, Override]] = []


_local = _Local()


def active_override(state: BeliefState) -> Override:
    """What the innermost `overriding` of this thread asks of a state's passes."""
    for owner, override in reversed(_local.overrides):
        if owner is state:
            return override
    return NO_OVERRIDE


@contextmanager
def overriding(model: nn.Module, **changes: Any) -> Iterator[None]:
    """Changes fields of the override for the passes of a converted model in this thread."""
    states = belief_states(model)
    _local.overrides += [(state, replace(active_override(state), **changes)) for state in states]
    try:
        yield
    finally:
        del _local.overrides[-len(states) :]
