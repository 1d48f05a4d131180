"""Credible intervals from draws, and how often they hold the truth."""

from jaxtyping import Bool, Float
from torch import Tensor

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Probabilities of the intervals that reports quote."""


def central_interval(
    draws: Float[Tensor, "draw ..."], level: float
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The interval that leaves half of the rest on either side, for each variable."""
    ends = draws.new_tensor([(1 - level) / 2, (1 + level) / 2])
    # Sorted by hand: torch.quantile refuses large tensors.
    places = (ends * (len(draws) - 1)).round().long()
    low, high = draws.sort(0).values[places]
    return low, high


def within(draws: Float[Tensor, "draw ..."], truth: Float[Tensor, "..."], level: float) -> Tensor:
    """Whether the central intervals hold the true values."""
    low, high = central_interval(draws, level)
    held: Bool[Tensor, "..."] = (low <= truth) & (truth <= high)
    return held


def coverage(
    draws: Float[Tensor, "draw ..."], truth: Float[Tensor, "..."]
) -> dict[str, tuple[float, float]]:
    """For each level the share of true values that the intervals hold, and its standard error.

    The standard error takes observations, the first axis of `truth`, as independent.
    """
    found = {}
    for level in LEVELS:
        held = within(draws, truth, level).double().flatten(1).mean(1)
        found[f"{level:g}"] = held.mean().item(), (held.std() / len(held) ** 0.5).item()
    return found
