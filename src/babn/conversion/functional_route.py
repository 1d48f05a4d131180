"""Attention by torch's functions, wherever a module calls them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from babn.conversion.forwards import Undo, call_original, override_forward, own_forward
from babn.conversion.multihead_route import multi_head_attention
from babn.conversion.sdpa_route import sdpa


class FunctionalMode(TorchFunctionMode):
    """Sends the attention functions that one module's forward calls to its method."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Takes over attention and nothing else."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.module, *args, **(kwargs or {}))[0]
        if func is F.multi_head_attention_forward:
            return multi_head_attention(self.module, *args, **(kwargs or {}))
        return call_original(func, args, kwargs)


def functional_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module's own forward with its attention calls taken over."""
    with FunctionalMode(self):
        return own_forward(self)(*args, **kwargs)


def install_functional(module: nn.Module) -> list[Undo]:
    """Takes over the attention functions that a module calls itself."""
    return override_forward(module, functional_forward)


class ModuleStack:
    """Knows, during a forward pass, which module is at work and which have been."""

    def __init__(self, model: nn.Module) -> None:
        self.stack = [model]
        self.entered: set[nn.Module] = set()

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Follows the calls of all modules of `model`."""
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(self._enter))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self.stack.append(module)
        self.entered.add(module)

    def _leave(self, *_: Any) -> None:
        self.stack.pop()


class DiscoverFunctional(TorchFunctionMode):
    """During the dry run, records which module calls which attention function."""

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()
        self.modules = stack.stack

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Records attention under the module at work."""
        if func is F.scaled_dot_product_attention:
            return sdpa(self.modules[-1], *args, **(kwargs or {}))[0]
        if func is F.multi_head_attention_forward:
            return multi_head_attention(self.modules[-1], *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
