"""Masks: `True` takes part. Masked keys enter no normaliser, no upward path and no divergence."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.attention.fixed_course import course_is_fixed, keys_are_in_order

Mask = Bool[Tensor, "#batch #head #query key"]


def log_normalize(
    log_s: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """Log softmax over the keys that take part; zero at the others."""
    if mask is None:
        return log_s.log_softmax(-1)
    lowest = torch.finfo(log_s.dtype).min
    return log_s.masked_fill(~mask, lowest).log_softmax(-1).masked_fill(~mask, 0.0)


def normalize(
    log_s: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the keys that take part; a query without any key gets zeros."""
    if mask is None:
        return log_s.softmax(-1)
    lowest = torch.finfo(log_s.dtype).min
    return log_s.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def zero_masked(
    x: Float[Tensor, "batch head query key"], mask: Mask | None
) -> Float[Tensor, "batch head query key"]:
    """`x` with zeros at masked keys."""
    return x if mask is None else x.masked_fill(~mask, 0.0)


def ranks(mask: Mask | None) -> Int[Tensor, "#batch #head #query key"] | None:
    """For each query, the place of a key among those it sees; `None` where that is its index.

    Padding on the left, a sliding window and a cropped cache all move a key's index and leave its
    rank alone, which is why maps over keys are applied in the order of ranks.
    """
    if mask is None:
        return None
    if keys_are_in_order():
        return None
    if not course_is_fixed():
        starts_late = ~mask[..., :-1] & mask[..., 1:]
        if not bool(starts_late.any()):
            return None
    return (mask.cumsum(-1) - 1).clamp_(min=0)


def to_ranks(
    x: Float[Tensor, "batch head query key"], rank: Int[Tensor, "#batch #head #query key"] | None
) -> Float[Tensor, "batch head query key"]:
    """Reorders keys by rank; `x` is zero at masked keys."""
    if rank is None:
        return x
    return torch.zeros_like(x).scatter_add(-1, rank.expand_as(x), x)


def from_ranks(
    x: Float[Tensor, "batch head query key"], rank: Int[Tensor, "#batch #head #query key"] | None
) -> Float[Tensor, "batch head query key"]:
    """The inverse of [`to_ranks`][babn.attention.masking.to_ranks] at keys that take part."""
    return x if rank is None else x.gather(-1, rank.expand_as(x))


def tokens_seen(mask: Mask) -> Bool[Tensor, "#batch #head key"]:
    """The keys at which any query looks; in self-attention the others are padding."""
    return mask.any(-2)


def is_rowwise(mask: Mask | None) -> bool:
    """Whether queries or heads differ in the keys that they see."""
    return mask is not None and (mask.shape[1] != 1 or mask.shape[2] != 1)
