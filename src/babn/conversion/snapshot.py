"""Running a model without leaving a trace in it."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the attributes, submodules, parameters and buffers of a model at the end.

    Some models change in a forward pass: BigBird replaces its attention modules when a text is
    short, RWKV divides its weights, others grow tables of positions.
    """
    contents = [(container, _copied(container)) for container in _containers(model)]
    written = _KeepsWritten(model)
    try:
        with written:
            yield
    finally:
        for container, before in contents:
            _restore(container, before)
        written.restore()


class _KeepsWritten(TorchFunctionMode):
    """Copies parameters and buffers before they are written to in place."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        tensors = [x for x in (*model.parameters(), *model.buffers()) if _has_memory(x)]
        self.data = [(x, x.data) for x in tensors]
        self.own = {x.untyped_storage().data_ptr() for x in tensors}
        self.kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Copies what the function writes to, if it belongs to the model."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place or name == "__setitem__" or name.startswith("__i") or "out" in kwargs:
            for x in pytree.tree_leaves((args[:1], kwargs)):
                if isinstance(x, Tensor) and _has_memory(x):
                    self._keep(x.untyped_storage())
        return func(*args, **kwargs)

    def _keep(self, storage: torch.UntypedStorage) -> None:
        address = storage.data_ptr()
        if address in self.own and address not in self.kept:
            self.kept[address] = storage, storage.clone()

    def restore(self) -> None:
        """Writes the copies back."""
        for storage, before in self.kept.values():
            storage.copy_(before)
        for x, data in self.data:
            if x.data_ptr() != data.data_ptr():
                x.data = data


def _has_memory(x: Tensor) -> bool:
    return type(x) in (Tensor, nn.Parameter) and x.layout == torch.strided and not x.is_meta


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
