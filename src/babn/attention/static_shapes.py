"""Forward passes whose control flow depends on shapes alone, as compilers and CUDA graphs need it.

Otherwise masks are inspected, since less is computed where they hide nothing. A recorded CUDA graph
cannot do so: it would wait for the device, and the result would hold for one batch only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_keys_in_order: ContextVar[bool | None] = ContextVar("keys in order", default=None)


def shapes_are_static() -> bool:
    """Whether control flow may depend on shapes alone, and not on the values of tensors."""
    return torch.compiler.is_compiling() or _keys_in_order.get() is not None


def keys_are_in_order() -> bool:
    """Whether the caller guarantees that no mask hides a key before one that is seen."""
    return not torch.compiler.is_compiling() and _keys_in_order.get() is True


@contextmanager
def static_shapes(*, keys_in_order: bool) -> Iterator[None]:
    """Makes forward passes depend on shapes alone.

    Args:
        keys_in_order: Whether it is guaranteed that texts are padded on the right and that every
            query sees all keys but the padding.
    """
    token = _keys_in_order.set(keys_in_order)
    try:
        yield
    finally:
        _keys_in_order.reset(token)
