"""Which forward pass an attention call belongs to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from babn.conversion.kl_use import warn_of_unused_kl
from babn.conversion.override import active_override
from babn.conversion.passes import Pass, Snapshot
from babn.conversion.state import BeliefState, Site
from babn.errors import CheckpointingError, NotConvertedError


class _Local(threading.local):
    """Each thread has its own passes, so one model can serve several threads."""

    def __init__(self) -> None:
        self.passes: list[tuple[nn.Module | None, Pass]] = []


_local = _Local()


def begin(
    module: nn.Module, state: BeliefState, needs_weights: bool = False, cache: Any = None
) -> None:
    """Enters a module of a converted model: a new pass, or one more level of the current one.

    No module is inside itself: if it is there already, an interruption left it behind.
    """
    for depth, (entered, _) in enumerate(_local.passes):
        if entered is module:
            del _local.passes[depth:]
            break
    current = active_pass()
    if current is None or current.state is not state:
        state.last_kl = None
        warn_of_unused_kl(state)
        current = Pass(state, module.training, active_override(state), needs_weights, cache)
    _local.passes.append((module, current))


def end(module: nn.Module) -> Pass | None:
    """Leaves a module; gives back the pass if this was its outermost level."""
    passes = _local.passes
    if not passes or passes[-1][0] is not module:  # an earlier hook failed before ours began
        return None
    _, finished = passes.pop()
    return None if active_pass() is finished else finished


def current_pass(site: Site) -> Pass:
    """The pass that an attention call belongs to."""
    current = active_pass()
    if current is None and torch._C._current_graph_task_id() != -1:
        raise CheckpointingError(
            f"{site.path} is recomputed by a checkpoint that does not know its forward pass. Use "
            "babn.checkpoint in place of torch.utils.checkpoint.checkpoint."
        )
    if current is None:
        raise NotConvertedError(
            f"{site.path} was called outside the model that was converted, so its upward path has "
            "no beginning. Call the converted model itself (or revert it first)."
        )
    return current


def active_pass() -> Pass | None:
    """The innermost pass of this thread, if any."""
    return _local.passes[-1][1] if _local.passes else None


@contextmanager
def resumed(forward_pass: Pass, snapshot: Snapshot) -> Iterator[None]:
    """Goes on with a pass at an earlier point, as recomputation under checkpointing does."""
    later = forward_pass.snapshot()
    forward_pass.restore(snapshot)
    _local.passes.append((None, forward_pass))
    try:
        yield
    finally:
        _local.passes.pop()
        forward_pass.restore(later)
