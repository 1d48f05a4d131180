"""Statistics of posterior draws: credible intervals and coverage."""

from jaxtyping import Bool, Float
from torch import Tensor

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the intervals in reports."""


def central_interval(
    draws: Float[Tensor, "draw ..."], level: float
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Returns the central credible interval of each variable."""
    ends = draws.new_tensor([(1 - level) / 2, (1 + level) / 2])
    # Sorted, because torch.quantile does not accept large tensors.
    places = (ends * (len(draws) - 1)).round().long()
    low, high = draws.sort(0).values[places]
    return low, high


def within(draws: Float[Tensor, "draw ..."], truth: Float[Tensor, "..."], level: float) -> Tensor:
    """Returns whether the central intervals contain the true values."""
    low, high = central_interval(draws, level)
    held: Bool[Tensor, "..."] = (low <= truth) & (truth <= high)
    return held


def coverage(
    draws: Float[Tensor, "draw ..."], truth: Float[Tensor, "..."]
) -> dict[str, tuple[float, float]]:
    """Returns the share of true values in the intervals of each level, and its standard error.

    The standard error assumes independent observations, the first axis of `truth`.
    """
    found = {}
    for level in LEVELS:
        held = within(draws, truth, level).double().flatten(1).mean(1)
        found[f"{level:g}"] = held.mean().item(), (held.std() / len(held) ** 0.5).item()
    return found
