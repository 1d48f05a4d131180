"""The stack of forward contexts, from which attention calls find theirs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from babn.conversion.forward_context import ForwardContext, Snapshot
from babn.conversion.override import active_override
from babn.conversion.state import BeliefState, CallSite
from babn.errors import CheckpointingError, NotConvertedError


class _Local(threading.local):
    """Each thread has its own contexts, so one model can serve several threads."""

    def __init__(self) -> None:
        self.contexts: list[tuple[nn.Module | None, ForwardContext]] = []


_local = _Local()


def begin(
    module: nn.Module, state: BeliefState, needs_weights: bool = False, cache: Any = None
) -> None:
    """Enters a module of a converted model: opens a context, or nests in the current one.

    A module cannot be inside itself: an entry that exists already is left from an interruption.
    """
    for depth, (entered, _) in enumerate(_local.contexts):
        if entered is module:
            del _local.contexts[depth:]
            break
    current = active_context()
    if current is None or current.state is not state:
        state.last_kl = None
        state.warn_of_unused_kl()
        override = active_override(state)
        current = ForwardContext(state, module.training, override, needs_weights, cache)
    _local.contexts.append((module, current))


def end(module: nn.Module) -> ForwardContext | None:
    """Leaves a module; returns the context if this was its outermost level."""
    contexts = _local.contexts
    if not contexts or contexts[-1][0] is not module:  # an earlier hook failed before ours began
        return None
    _, finished = contexts.pop()
    return None if active_context() is finished else finished


def current_context(site: CallSite) -> ForwardContext:
    """The context that an attention call belongs to."""
    current = active_context()
    if current is None and torch._C._current_graph_task_id() != -1:
        raise CheckpointingError(
            f"{site.path} is recomputed by a checkpoint that does not know its forward pass. Use "
            "babn.checkpoint in place of torch.utils.checkpoint.checkpoint."
        )
    if current is None:
        raise NotConvertedError(
            f"{site.path} was called outside the converted model, so its upward path is missing. "
            "Call the converted model itself (or revert it first)."
        )
    return current


def active_context() -> ForwardContext | None:
    """The innermost context of this thread, if any."""
    return _local.contexts[-1][1] if _local.contexts else None


@contextmanager
def resumed(context: ForwardContext, snapshot: Snapshot) -> Iterator[None]:
    """Resumes a context at an earlier point, for recomputation under checkpointing."""
    later = context.snapshot()
    context.restore(snapshot)
    _local.contexts.append((None, context))
    try:
        yield
    finally:
        _local.contexts.pop()
        context.restore(later)
