"""Masks: `True` takes part. Masked keys enter no normaliser, no upward path and no KL.

Masks are inspected, since less is computed where they hide nothing. Under `static_shapes` they are
not: a recorded CUDA graph would wait for the device, and the result would hold for one batch only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Mask = Bool[Tensor, "#batch #head #query key"]

_keys_in_order: ContextVar[bool | None] = ContextVar("keys in order", default=None)


def log_normalize(
    log_s: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """Log softmax over the keys that take part; zero at the others."""
    return zero_masked(_lowest_masked(log_s, mask).log_softmax(-1), mask)


def normalize(
    log_s: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the keys that take part; a query without any key gets zeros."""
    return zero_masked(_lowest_masked(log_s, mask).softmax(-1), mask)


def zero_masked(
    x: Float[Tensor, "batch head query key"],
    mask: Bool[Tensor, "#batch #head #query #key"] | None,
) -> Float[Tensor, "batch head query key"]:
    """`x` with zeros at masked keys."""
    return x if mask is None else x.masked_fill(~mask, 0.0)


def _lowest_masked(x: Tensor, mask: Mask | None) -> Tensor:
    """`x` with the lowest number of its type at masked keys."""
    return x if mask is None else x.masked_fill(~mask, torch.finfo(x.dtype).min)


def ranks(mask: Mask | None) -> Int[Tensor, "#batch #head #query key"] | None:
    """The rank of each key among those that a query sees; `None` if all ranks equal the indices.

    Left padding, a sliding window and a cropped cache all change a key's index but not its rank.
    Maps over keys are therefore applied in rank order.
    """
    if mask is None or keys_are_in_order():
        return None
    if not shapes_are_static():
        seen_after_masked = ~mask[..., :-1] & mask[..., 1:]
        if not bool(seen_after_masked.any()):
            return None
    return (mask.cumsum(-1) - 1).clamp_(min=0)


def in_rank_order(
    x: Float[Tensor, "batch head query key"], mask: Mask | None
) -> tuple[Tensor, Mask | None, Int[Tensor, "#batch #head #query key"] | None]:
    """`x`, which is zero at masked keys, and its mask with keys in rank order, and the ranks."""
    rank = ranks(mask)
    if rank is None or mask is None:
        return x, mask, None
    places = torch.arange(mask.shape[-1], device=mask.device)
    reordered = torch.zeros_like(x).scatter_add(-1, rank.expand_as(x), x)
    return reordered, places < mask.sum(-1, keepdim=True), rank


def from_ranks(
    x: Float[Tensor, "batch head query key"], rank: Int[Tensor, "#batch #head #query key"] | None
) -> Float[Tensor, "batch head query key"]:
    """Puts the keys of `x` from rank order into their own order, at keys that take part."""
    return x if rank is None else x.gather(-1, rank.expand_as(x))


def tokens_seen(mask: Mask) -> Bool[Tensor, "#batch #head key"]:
    """The keys that any query sees; in self-attention the others are padding."""
    return mask.squeeze(-2) if mask.shape[-2] == 1 else mask.any(-2)


def keys_seen(
    mask: Mask | None, rows: Bool[Tensor, "#batch #head query"] | None = None
) -> Bool[Tensor, "#batch #head 1 #key"] | None:
    """The keys that are seen by a query that counts, as a mask of one row.

    Args:
        mask: The mask of the call.
        rows: The queries that count; all by default.
    """
    if rows is not None and (mask is None or mask.shape[-2] == 1):
        any_row = rows.any(-1)[..., None, None]
        return any_row if mask is None else mask & any_row
    if mask is None or mask.shape[-2] == 1:
        return mask
    return (mask if rows is None else mask & rows.unsqueeze(-1)).any(-2, keepdim=True)


def is_rowwise(mask: Mask | None) -> bool:
    """Whether the mask differs between queries or heads."""
    return mask is not None and (mask.shape[1] != 1 or mask.shape[2] != 1)


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
