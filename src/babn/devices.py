"""The device of a model, and the one that is used by default."""

import torch
from torch import nn


def default_device() -> torch.device:
    """The current CUDA device if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter; the CPU if it has none."""
    return next(model.parameters(), torch.empty(0)).device
