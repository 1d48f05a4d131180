"""Training of the belief parameters alone."""

from typing import TypeVar

from torch import nn

from babn.conversion.state import belief_states

Model = TypeVar("Model", bound=nn.Module)


def freeze_base(model: Model) -> Model:
    """Freezes everything but what conversion added, in place.

    The trainable part is then small, a few kilobytes to a few megabytes; `babn.save_adapter` writes
    it and `babn.load_adapter` loads it onto the same base. Create optimizers afterwards.

    Args:
        model: A converted model. Adapters on it are frozen too; to train both, freeze nothing and
            name `"babn"` in the `modules_to_save` of PEFT.
    """
    states = belief_states(model)
    model.requires_grad_(False)
    for state in states:
        state.requires_grad_(True)
    return model
