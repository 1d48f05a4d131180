"""Runs a model on an example, and restores the model and all global state afterwards."""

import copy
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils import _pytree as pytree

from babn.conversion.transformers_route import own_configurations
from babn.errors import BabnError, ConversionError, ExampleInputsError, UnsupportedAttentionError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set)

_one_at_a_time = threading.RLock()
"""A dry run sets torch's random state, which all threads share."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Sets evaluation mode without gradients; restores the model and the random state on exit.

    Configurations are copied, since other models, also in other threads, may share them.
    """
    with _one_at_a_time, torch.no_grad(), torch.random.fork_rng(), unchanged(model):
        own_configurations(model)
        model.eval()
        yield


def check_does_not_switch(model: nn.Module) -> None:
    """Raises for BigBird's block-sparse attention, which a short text replaces permanently."""
    for module in model.modules():
        sparse = getattr(module, "attention_type", None) == "block_sparse"
        if sparse and hasattr(module, "set_attention_type"):
            raise UnsupportedAttentionError(
                f'attention_type="block_sparse": {type(module).__name__} replaces its attention '
                "modules when a text is short, which would undo conversion. Build it with "
                'attention_type="original_full".'
            )


def run_example(model: nn.Module, call: Arguments) -> Any:
    """Runs a model on a copy of the arguments, since a forward pass may change them."""
    args, kwargs = _copied(call)
    torch.manual_seed(0)  # the same random numbers in each run
    known = set(model.modules())
    try:
        output = model(*args, **kwargs)
    except BabnError:
        raise
    except Exception as error:
        given = list(kwargs) or [type(arg).__name__ for arg in args]
        raise ExampleInputsError(
            f"The dry run of {type(model).__name__} with {given} failed: "
            f"{type(error).__name__}: {error}. Pass example_inputs that the model accepts."
        ) from error
    for path, module in model.named_modules():
        if module not in known and looks_like_attention(module):
            raise ConversionError(
                f"{type(model).__name__} replaces the module at {path} in its forward by one "
                f"of class {type(module).__name__}, which would undo conversion. Build the model "
                "in that form, so that no forward pass changes it."
            )
    return output


def _copied(call: Arguments) -> Arguments:
    """Copies arguments with their tensors, including those in key-value caches."""
    try:
        with _CopiesOfResults():
            return copy.deepcopy(call)
    except Exception:  # some objects cannot be copied, such as locks
        copied: Arguments = pytree.tree_map_only(Tensor, Tensor.clone, call)
        return copied


class _CopiesOfResults(BaseTorchFunctionMode):
    """Allows deep copies of tensors with a graph, which torch refuses to copy."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Copies without the graph."""
        if func is Tensor.__deepcopy__:
            return args[0].detach().clone()
        return super().__torch_function__(func, types, args, kwargs)


def looks_like_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class contains "attention"."""
    return "attention" in type(module).__name__.lower()


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the attributes, submodules, parameters and buffers of a model on exit.

    Some models change in a forward pass: BigBird replaces its attention modules when a text is
    short, RWKV divides its weights, others extend tables of positions.
    """
    contents = [(c, dict(c) if isinstance(c, dict) else list(c)) for c in _containers(model)]
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
        """Copies tensors of the model that the function writes to."""
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
    """The attribute dictionaries of all modules, and the containers and data classes in them."""
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


def _restore(container: Any, before: Any) -> None:
    """Restores only what differs, since other threads may read the model."""
    if isinstance(container, dict):
        for key in [key for key in container if key not in before]:
            del container[key]
        for key, value in before.items():
            if key not in container or container[key] is not value:
                container[key] = value
    elif list(map(id, container)) != list(map(id, before)):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)
