"""The temperature of a converted model, which is saved with it."""

import math

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
