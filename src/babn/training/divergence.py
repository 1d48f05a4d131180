"""The divergence of a converted model's last pass, and its weight in the loss."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.conversion.state import belief_states
from babn.errors import ConfigError, NoKLError


def set_kl_weight(model: nn.Module, weight: float) -> None:
    """Sets the weight of the divergence in the training loss.

    The weight is a buffer, so that changing it does not recompile a compiled model.
    """
    if not weight >= 0 or weight == float("inf"):
        raise ConfigError(f"weight={weight!r} is not possible. Give a number of at least 0.")
    for state in belief_states(model):
        state.kl_weight.fill_(weight)


def get_kl_weight(model: nn.Module) -> float:
    """The weight of the divergence in the training loss."""
    return float(belief_states(model)[0].kl_weight)


def kl_per_layer(source: Any) -> dict[str, Float[Tensor, ""]]:
    """The KL of each attention call, by chain and step; empty if the method has no prior.

    Args:
        source: A model's output, or a converted model for its last pass.

    Raises:
        NoKLError: The pass computed no KL, as in evaluation mode without gradients.
    """
    if not isinstance(source, nn.Module):
        if not hasattr(source, "belief_kl_per_layer"):
            raise NoKLError(
                f"This {type(source).__name__} carries no KL: its model is not converted, its "
                "method has no prior, or it ran in evaluation mode without gradients, where "
                "babn.recording_kl(model) makes it compute one. If a wrapper rebuilt the output, "
                "pass the model."
            )
        return source.belief_kl_per_layer
    layers: dict[str, Tensor] = {}
    for state in belief_states(source):
        if state.last_kl is None:
            raise NoKLError(
                f"The last pass of {type(source).__name__} computed no KL: there was no pass yet, "
                "or it ran in evaluation mode without gradients. Run the pass inside "
                "babn.recording_kl(model)."
            )
        layers |= state.last_kl
    return layers


def belief_kl(model: nn.Module) -> Float[Tensor, ""]:
    """The KL of a converted model's last pass, with gradients; for hand-written losses.

    Zero if the method has no prior; `NoKLError` if the pass computed none, as in `kl_per_layer`.
    """
    values = list(kl_per_layer(model).values())
    return torch.stack(values).sum() if values else torch.zeros(())


def weighted_kl(model: nn.Module) -> Float[Tensor, ""]:
    """The term that training adds to the loss: weight times divergence."""
    return belief_states(model)[0].kl_weight * belief_kl(model)
