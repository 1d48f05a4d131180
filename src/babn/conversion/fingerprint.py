"""A few numbers by which a base is known again, so that beliefs are not put onto another one."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from babn.conversion.state import BeliefState

VALUES = 8
"""Numbers of each matrix that are kept."""

TOLERANCE = 0.03
"""Of their size; half precision stays well below, and training does not."""


def fingerprint(root: nn.Module, state: BeliefState) -> dict[str, list[float]]:
    """Some weights of the first, a middle and the last attention module that follow the rule.

    Args:
        root: The model that was converted.
        state: What conversion has put on it.
    """
    paths = list(dict.fromkeys(call.path for chain in state.chains for call in chain.calls))
    places = sorted({0, len(paths) // 2, len(paths) - 1})
    return {
        name: _some(tensor) for at in places for name, tensor in _matrices(root, paths[at], state)
    }


def differing(saved: dict[str, list[float]], found: dict[str, list[float]]) -> list[str]:
    """Names of the matrices whose numbers do not agree; those that only one side has are passed."""
    return [name for name in saved if name in found and not _alike(saved[name], found[name])]


def _matrices(root: nn.Module, path: str, state: BeliefState) -> Iterator[tuple[str, Tensor]]:
    """The matrices inside a module, without adapters and quantised ones."""
    own = {id(parameter) for parameter in state.parameters()}
    for name, tensor in root.get_submodule(path).named_parameters(prefix=path):
        plain = type(tensor) in (nn.Parameter, Tensor) and tensor.is_floating_point()
        if plain and tensor.ndim > 1 and "lora_" not in name and id(tensor) not in own:
            yield name.replace(".base_layer", ""), tensor.detach()


def _some(tensor: Tensor) -> list[float]:
    if tensor.is_meta:
        return []
    flat = tensor.reshape(-1)
    places = torch.linspace(0, len(flat) - 1, VALUES, device=flat.device).long()
    return [round(value, 6) for value in flat[places].float().tolist()]


def _alike(one: list[float], other: list[float]) -> bool:
    if len(one) != len(other):
        return not one or not other  # a model without weights says nothing
    size = max([abs(value) for value in one], default=0.0) + 1e-5
    return all(abs(x - y) <= TOLERANCE * size for x, y in zip(one, other, strict=True))
