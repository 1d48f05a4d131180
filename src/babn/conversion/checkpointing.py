"""Activation checkpointing, in which attention is computed a second time during backward."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from babn.conversion.forward_context import ForwardContext, active_context, resumed
from babn.errors import CheckpointingError

_CHECKPOINT = "_gradient_checkpointing_func"


class CheckpointInContext:
    """A checkpointing function that recomputes inside its forward context."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        keywords = inner.keywords if isinstance(inner, functools.partial) else {}
        if keywords.get("use_reentrant"):
            raise reentrant_error()
        self.inner = inner

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `function` under checkpointing."""
        context = active_context()
        if context is None:
            return self.inner(function, *args, **kwargs)
        snapshot = context.snapshot()

        def recomputable(*args: Any, **kwargs: Any) -> Any:
            if active_context() is context:
                return function(*args, **kwargs)
            if context.override.noise_source.seeds is not None:
                raise CheckpointingError(
                    "Seeded sampling uses its own generators, which recomputation cannot rewind. "
                    "Sample without gradients, or turn gradient checkpointing off."
                )
            with resumed(context, snapshot):
                return function(*args, **kwargs)

        return self.inner(recomputable, *args, **kwargs)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint` for code inside a converted model."""
    from torch.utils.checkpoint import checkpoint as torch_checkpoint

    inner = functools.partial(torch_checkpoint, use_reentrant=kwargs.pop("use_reentrant", False))
    return CheckpointInContext(inner)(function, *args, **kwargs)


def keep_context_across_checkpoints(modules: list[nn.Module]) -> None:
    """Wraps the checkpointing functions that transformers has put on modules."""
    for module in modules:
        inner = module.__dict__.get(_CHECKPOINT)
        if inner is not None and not isinstance(inner, CheckpointInContext):
            module.__dict__[_CHECKPOINT] = CheckpointInContext(inner)


def unwrap_checkpoints(model: nn.Module) -> None:
    """Removes the wrapping."""
    for module in model.modules():
        inner = module.__dict__.get(_CHECKPOINT)
        if isinstance(inner, CheckpointInContext):
            module.__dict__[_CHECKPOINT] = inner.inner


def check_not_reentrant(context: ForwardContext) -> None:
    """Raises under reentrant checkpointing, which would silently drop the gradients of the KL."""
    if torch.compiler.is_compiling():
        return
    if not context.training or not context.grad_enabled or torch.is_grad_enabled():
        return
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        in_checkpoint = frame.f_code.co_filename.endswith("torch/utils/checkpoint.py")
        if in_checkpoint and frame.f_code.co_qualname.startswith("CheckpointFunction"):
            raise reentrant_error()


def reentrant_error() -> CheckpointingError:
    """The error for reentrant checkpointing."""
    return CheckpointingError(
        "use_reentrant=True: reentrant checkpointing drops the gradients of the KL term. Use "
        'use_reentrant=False, e.g. activation_checkpointing_enable({"use_reentrant": False}), or '
        "gradient_checkpointing_enable before transformers 5.23."
    )
