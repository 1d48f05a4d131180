"""Passes that are recorded once and replayed: their course may depend on shapes alone.

Whether a mask hides anything, and in which order, is looked up otherwise, since less is to be
computed where it does not. A recording cannot look: it would wait for the device, and what it saw
would hold for one batch only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_promises: ContextVar[bool | None] = ContextVar("keys in order", default=None)


def course_is_fixed() -> bool:
    """Whether the values of tensors may decide nothing."""
    return torch.compiler.is_compiling() or _promises.get() is not None


def keys_are_in_order() -> bool:
    """Whether it is promised that no mask hides a key before one that is seen."""
    return not torch.compiler.is_compiling() and _promises.get() is True


@contextmanager
def fixed_course(*, keys_in_order: bool) -> Iterator[None]:
    """Makes passes depend on shapes alone.

    Args:
        keys_in_order: A promise that texts are padded on the right, and see all that is not
            padding.
    """
    token = _promises.set(keys_in_order)
    try:
        yield
    finally:
        _promises.reset(token)
