"""The last linear layer of a classifier, and the features that it receives."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.errors import ConfigError
from babn.methods.trained_models import Batches
from babn.prediction.batches import TARGETS, device_of, placed_batches
from babn.prediction.modes import evaluating
from babn.training.freezing import HEADS


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Path and module of the last linear layer, inside the head if the model names one."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    inside = [name for name in layers if set(name.split(".")) & set(HEADS)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no linear layer. Give a classifier.")
    path = (inside or list(layers))[-1]
    return path, layers[path]


def features(
    model: nn.Module, head: nn.Module, batches: Batches
) -> Float[Tensor, "example feature"]:
    """What a head receives for all batches, on the CPU."""
    found: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        found.append(next(iter((*args, *named.values()))).detach().float().cpu())

    hook = head.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad(), evaluating(model):
            for batch in placed_batches(batches, device_of(model)):
                model(**{name: value for name, value in batch.items() if name not in TARGETS})
    finally:
        hook.remove()
    return torch.cat(found)
