"""Settings of a call of the kernels for noise over pairs: numbers, kinds of tensors, and memory.

Needs no Triton.
"""

import math
from typing import Literal, NamedTuple

from torch import Tensor

ShapeType = Literal["fixed", "scores", "upward"]
"""Where the Weibull shape k comes from: a number, the scores alone, or scores and upward path."""

PriorType = Literal["none", "constant", "keys", "rows"]
"""The prior of the KL: no KL; a number; or shapes from the keys, normalised over all of them or
over those that each row sees."""

MaskType = Literal["none", "keys", "pairs"]
"""What a mask distinguishes."""

Precision = Literal["half", "ieee", "tf32"]
"""Matmul precision: half precision, or float32 with all digits or rounded to TF32."""

LARGE_RHO = 8.0
"""From this rho on kernels first assume that all k are at least 1, and repeat a block of queries
otherwise. Softplus of untrained maps is about 0.7."""


SMALLEST_FIXED_K = 1e-4
"""Floor of a shape that is one number, by which kernels divide."""


class Settings(NamedTuple):
    """Numbers and choices of a call.

    Attributes:
        scale: Factor of the dot products.
        rho: Weight of the upward path in the shape; 0 for none.
        fixed_k: The shape, where it is one number; 0 otherwise.
        sigma: Weight of the upward path in the scale; 0 for none.
        beta: Rate of the prior.
        alpha: Shape of the prior, where it is one number.
        normalized: Whether scores are normalised over keys.
        sample: Whether to draw a sample, or to compute the posterior mean.
        truncated: Whether the noise is truncated.
        own_moment: Whether the mean factor is that of the truncated noise.
        with_kl: Whether to compute the KL.
    """

    scale: float
    rho: float
    fixed_k: float
    sigma: float
    beta: float
    alpha: float
    normalized: bool
    sample: bool
    truncated: bool
    own_moment: bool
    with_kl: bool

    @property
    def shape(self) -> ShapeType:
        """Where the Weibull shape comes from."""
        if self.fixed_k > 0:
            return "fixed"
        return "upward" if self.rho > 0 else "scores"

    def prior(self, has_network: bool, mask: MaskType) -> PriorType:
        """The kind of prior."""
        if not self.with_kl:
            return "none"
        if not has_network:
            return "constant"
        return "rows" if mask == "pairs" else "keys"

    def complete(self, prior: PriorType) -> bool:
        """Whether the gradients of log softmax scores are also those of the scores.

        They are where scores are not normalised, or where those of a row sum to zero. Those through
        the logits do. Those of the KL are the difference of two distributions over keys, if
        expected weights are the scores themselves and the prior's shapes sum to one.
        """
        sums_to_zero = self.beta == 1 and prior in ("keys", "rows")
        plain = self.shape == "fixed" and self.sigma == 0 and not self.own_moment
        return not self.normalized or (plain and (sums_to_zero or not self.with_kl))


def settings_of(numbers: tuple[float, ...]) -> Settings:
    """Settings from the numbers as which operators take them."""
    scale, rho, fixed_k, sigma, beta, alpha, *flags = numbers
    return Settings(scale, rho, fixed_k, sigma, beta, alpha, *map(bool, flags))


def numbers_of(settings: Settings) -> tuple[float, ...]:
    """The numbers of a call as kernels take them, with logarithms to base 2."""
    return (
        settings.scale / math.log(2),
        settings.rho * math.log(2),
        max(settings.fixed_k, SMALLEST_FIXED_K),
        settings.sigma * math.log(2),
        math.log2(settings.beta),
        settings.alpha,
    )


def mask_type(mask: Tensor | None) -> MaskType:
    """The kind of a mask."""
    if mask is None:
        return "none"
    return "pairs" if mask.shape[1] > 1 or mask.shape[2] > 1 else "keys"


LARGEST_PART = 3 * 2**27
"""Bytes of query-key pairs above which backward takes the batch in parts."""

LARGEST_PART_OF_MAPS = 3 * 2**26
"""The same with maps over heads, whose results are among them."""

ROWS_OF_A_PART = 16
"""Rows over which one warp sums the gradient of the prior; the rest is summed afterwards."""

NUMBERS = 2
"""What backward has for each pair: its weight, and the gradient of its score."""


def examples_at_a_time(batch: int, pairs: int, maps: int) -> int:
    """How many examples backward takes at a time; also for sizes that are symbols.

    Args:
        batch: The number of examples.
        pairs: The bytes of one number for each pair of an example.
        maps: Maps over heads, whose results backward has as well.
    """
    largest = LARGEST_PART_OF_MAPS if maps else LARGEST_PART
    parts = -(-batch * pairs * (NUMBERS + maps) // largest)
    return -(-batch // min(batch, parts)) if parts > 1 else batch
