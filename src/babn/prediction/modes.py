"""Temporary evaluation mode of a model, also while several threads use it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn


@dataclass
class _Use:
    """A model inside one or more `evaluating` blocks.

    Attributes:
        before: The training modes of its modules, to be restored.
        dropout: Whether dropout is on.
        threads: The thread of each block.
    """

    before: dict[nn.Module, bool]
    dropout: bool
    threads: list[int]


_uses: WeakKeyDictionary[nn.Module, _Use] = WeakKeyDictionary()
_changes = threading.Condition()


@contextmanager
def evaluating(model: nn.Module, dropout: bool = False) -> Iterator[None]:
    """Puts a model into evaluation mode; with `dropout`, dropout stays on.

    The last of several threads restores the modes. Threads with and without dropout wait for each
    other.
    """
    thread = threading.get_ident()
    with _changes:
        _changes.wait_for(lambda: _may_enter(model, dropout, thread))
        use = _uses.get(model)
        if use is None:
            modes = {module: module.training for module in model.modules()}
            use = _uses[model] = _Use(modes, dropout, [])
            if dropout or any(modes.values()):
                _switch(model, use, dropout)
        outer = use.dropout
        if outer != dropout:
            _switch(model, use, dropout)
        use.threads.append(thread)
    try:
        yield
    finally:
        with _changes:
            use.threads.remove(thread)
            if not use.threads:
                del _uses[model]
                for module, mode in use.before.items():
                    module.training = mode
            elif outer != dropout:
                _switch(model, use, outer)
            _changes.notify_all()


def _may_enter(model: nn.Module, dropout: bool, thread: int) -> bool:
    """Whether no other thread is using the model in the other mode."""
    use = _uses.get(model)
    return use is None or use.dropout == dropout or set(use.threads) == {thread}


def _switch(model: nn.Module, use: _Use, dropout: bool) -> None:
    use.dropout = dropout
    model.train(dropout)
    for module in use.before:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
