"""Settings of predictions that are stored in a converted model."""

import torch
from torch import Tensor, nn

from babn.conversion.state import belief_states
from babn.validation import check_at_least


def set_temperature(model: nn.Module, temperature: float) -> None:
    """Sets the temperature that `predict` divides logits by; above 1 lowers confidence.

    Calls of the model itself and training ignore it.
    """
    check_at_least("temperature", temperature, 0.0, strictly=True)
    for state in belief_states(model):
        state.temperature.fill_(temperature)


def get_temperature(model: nn.Module) -> float:
    """The temperature that `predict` divides logits by."""
    return float(belief_states(model)[0].temperature)


def set_noise_level(model: nn.Module, level: float) -> None:
    """Sets the multiplier of the noise in predictions: 0 for none, 1 for the posterior's own.

    The posterior mean and training ignore it. `babn.tune_noise` finds the level on development
    data.
    """
    check_at_least("level", level, 0.0)
    for state in belief_states(model):
        state.set_level(float(level))


def get_noise_level(model: nn.Module) -> float:
    """The multiplier of the noise in predictions."""
    return belief_states(model)[0].level


def set_residual(model: nn.Module, residual: float) -> None:
    """Sets the residual standard deviation of a regression, which the samples do not explain.

    It is in the units of the prediction, whose `std` and `interval` include it. `babn.tune_noise`
    fits it to development data.
    """
    check_at_least("residual", residual, 0.0)
    for state in belief_states(model):
        state.residual.copy_(residual / state.output_scale)


def get_residual(model: nn.Module) -> float:
    """The residual standard deviation of a regression, which the samples do not explain."""
    state = belief_states(model)[0]
    return float(state.residual * state.output_scale)


def set_output_units(model: nn.Module, mean: float, scale: float) -> None:
    """Sets mean and scale of a regression whose model was trained on standardised labels.

    `predict` returns `output * scale + mean`. Calls of the model itself and training ignore them.
    """
    for state in belief_states(model):
        state.output_mean.fill_(mean)
        state.output_scale.fill_(scale)


def in_output_units(model: nn.Module, output: Tensor) -> Tensor:
    """The outputs of a regression in the units of the data, in single precision."""
    state = belief_states(model)[0]
    if state.output_scale == 1 and state.output_mean == 0:
        return output
    return torch.addcmul(state.output_mean, output.float(), state.output_scale)
