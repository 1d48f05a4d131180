"""Overrides the forward of single modules; copies of the model keep it, and it can be undone."""

import functools
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Undo = Callable[[], Any]

_OWN_FORWARD = "_babn_own_forward"


def override_forward(module: nn.Module, forward: Callable[..., Any]) -> list[Undo]:
    """Overrides the forward of a module by a bound method, which copies of the model keep."""
    before = module.__dict__.get("forward")
    module.__dict__[_OWN_FORWARD] = before
    bound = types.MethodType(functools.wraps(type(module).forward)(forward), module)
    module.__dict__["forward"] = bound
    return [partial(_restore_forward, module)]


def _restore_forward(module: nn.Module) -> None:
    before = module.__dict__.pop(_OWN_FORWARD)
    del module.__dict__["forward"]
    if before is not None:
        module.__dict__["forward"] = before


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward that `override_forward` replaced: another tool's or the class's."""
    return module.__dict__[_OWN_FORWARD] or partial(type(module).forward, module)


def call_original(func: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Calls a function that a torch function mode does not replace."""
    if func is Tensor.unflatten:  # torch.compile cannot trace the method under a mode
        func = torch.unflatten
    return func(*args, **(kwargs or {}))
