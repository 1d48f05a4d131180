"""A model's evaluation mode for as long as someone asks it, whatever mode it is in otherwise."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn


@dataclass
class _Asked:
    """A model that is being asked.

    Attributes:
        before: The modes of its modules, to be restored.
        dropout: Whether dropout is on.
        threads: Those that ask, as often as they do.
    """

    before: dict[nn.Module, bool]
    dropout: bool
    threads: list[int]


_asked: WeakKeyDictionary[nn.Module, _Asked] = WeakKeyDictionary()
_changes = threading.Condition()


@contextmanager
def evaluating(model: nn.Module, dropout: bool = False) -> Iterator[None]:
    """Evaluation mode, or training mode but for batch statistics if dropout is to be on.

    The last of several threads restores what was before. Those that want dropout and those that do
    not wait for each other.
    """
    thread = threading.get_ident()
    with _changes:
        _changes.wait_for(lambda: _may_enter(model, dropout, thread))
        asked = _asked.get(model)
        if asked is None:
            modes = {module: module.training for module in model.modules()}
            asked = _asked[model] = _Asked(modes, dropout, [])
            _switch(model, asked, dropout)
        outer = asked.dropout
        if outer != dropout:
            _switch(model, asked, dropout)
        asked.threads.append(thread)
    try:
        yield
    finally:
        with _changes:
            asked.threads.remove(thread)
            if not asked.threads:
                del _asked[model]
                for module, mode in asked.before.items():
                    module.training = mode
            elif outer != dropout:
                _switch(model, asked, outer)
            _changes.notify_all()


def _may_enter(model: nn.Module, dropout: bool, thread: int) -> bool:
    """Whether nobody else would be disturbed; a thread does not wait for itself."""
    asked = _asked.get(model)
    return asked is None or asked.dropout == dropout or set(asked.threads) == {thread}


def _switch(model: nn.Module, asked: _Asked, dropout: bool) -> None:
    asked.dropout = dropout
    model.train(dropout)
    for module in asked.before:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
