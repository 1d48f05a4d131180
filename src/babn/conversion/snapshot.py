"""Running a model without leaving a trace in it."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set)

PACKED = 2**18
"""Buffers of more integers than this are quantised weights, which no forward pass changes."""


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the attributes, submodules and buffers of a model at the end.

    Some models change in a forward pass: BigBird replaces its attention modules when a text is
    short, others grow tables of positions.
    """
    contents = [(container, _copied(container)) for container in _containers(model)]
    values = [(buffer, buffer.clone()) for buffer in model.buffers() if _may_change(buffer)]
    try:
        yield
    finally:
        for container, before in contents:
            _restore(container, before)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _containers(model: nn.Module) -> list[Any]:
    """The attributes of all modules, and the collections and data classes in them."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [vars(module) for module in model.modules()]
    while waiting:
        container = waiting.pop()
        if id(container) in found:
            continue
        found[id(container)] = container
        for value in list(container.values() if isinstance(container, dict) else container):
            if type(value) in CONTAINERS:
                waiting.append(value)
            elif is_dataclass(value) and hasattr(value, "__dict__") and not isinstance(value, type):
                waiting.append(vars(value))
    return list(found.values())


def _copied(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _restore(container: Any, before: Any) -> None:
    """Puts back what differs and touches nothing else, since other threads may read the model."""
    if isinstance(container, dict):
        for key in [key for key in container if key not in before]:
            del container[key]
        for key, value in before.items():
            if key not in container or container[key] is not value:
                container[key] = value
    elif len(container) != len(before) or any(
        new is not old for new, old in zip(container, before, strict=True)
    ):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)


def _may_change(buffer: Tensor) -> bool:
    plain = type(buffer) is Tensor and buffer.layout == torch.strided and not buffer.is_meta
    return plain and (buffer.is_floating_point() or buffer.numel() <= PACKED)
