"""Temperature and noise level of a converted model, which are saved with it."""

import math
from numbers import Real

from torch import nn

from babn.conversion.state import belief_states
from babn.errors import ConfigError


def set_temperature(model: nn.Module, temperature: float) -> None:
    """Sets what `predict` divides logits by; above 1 makes a model less sure.

    The model's own outputs and its training stay as they are.
    """
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature={temperature!r} is not possible. Give a number above 0.")
    for state in belief_states(model):
        state.temperature.fill_(temperature)


def get_temperature(model: nn.Module) -> float:
    """What `predict` divides logits by."""
    return float(belief_states(model)[0].temperature)


def set_noise_level(model: nn.Module, level: float) -> None:
    """Sets what the noise of predictions is multiplied by: 0 for none, 1 for the posterior's own.

    The posterior mean and training stay as they are. `babn.tune_noise` finds the level on
    development data.
    """
    if isinstance(level, bool) or not isinstance(level, Real) or not 0 <= level < math.inf:
        raise ConfigError(f"level={level!r} is not possible. Give a number from 0 on.")
    for state in belief_states(model):
        state.set_level(float(level))


def get_noise_level(model: nn.Module) -> float:
    """What the noise of predictions is multiplied by."""
    return belief_states(model)[0].level
