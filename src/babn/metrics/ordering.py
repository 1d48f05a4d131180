"""Examples in order of confidence, whatever order equal ones came in."""

from jaxtyping import Float
from torch import Tensor


def from_the_surest(
    confidence: Float[Tensor, "example"], correct: Float[Tensor, "example"]
) -> tuple[Float[Tensor, "example"], Float[Tensor, "example"]]:
    """Both from the highest confidence down; examples with equal confidence share their mean."""
    confidence, order = confidence.sort(descending=True)
    _, group, count = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    right = correct.new_zeros(len(count)).index_add(0, group, correct[order])
    return confidence, (right / count)[group]
