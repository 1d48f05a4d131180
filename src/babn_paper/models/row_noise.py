"""Noise that a sentence has in every batch: counter-based numbers for each row."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.attention.noise_source import NoiseSource
from babn.distributions.noise import Noise


class RowNoiseSource(NoiseSource):
    """Noise that is independent of the other rows of the batch and of padding.

    Each number is a hash of the seed of its row, the number of earlier draws, and its indices, so
    that a sentence has the same noise in every batch.

    Args:
        seeds: One seed per row of the batch.

    Example:
        >>> short = RowNoiseSource([5]).uniform(torch.zeros(1, 3))
        >>> long = RowNoiseSource([4, 5]).uniform(torch.zeros(2, 8))
        >>> torch.equal(short[0], long[1, :3])
        True
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self._rows = torch.tensor(seeds, dtype=torch.int64)
        self._drawn = 0

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Continues with some rows of the batch; their noise stays the same."""
        self._rows = self._rows.to(rows.device)[rows]

    def noise(self, noise: Noise, like: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Standard noise with the shape of `like`."""
        return noise.from_uniform(self.uniform(like))

    def uniform(self, like: Float[Tensor, "row ..."]) -> Float[Tensor, "row ..."]:
        """Uniform numbers between 0 and 1 with the shape of `like`."""
        self._rows = self._rows.to(like.device)
        hashed = _mixed(_mixed(self._rows) + self._drawn)
        self._drawn += 1
        for size in like.shape[1:]:
            places = torch.arange(1, size + 1, device=like.device)
            hashed = _mixed(hashed.unsqueeze(-1) + places * _GOLDEN)
        digits = 53 if like.dtype == torch.float64 else 23
        whole = (hashed >> (64 - digits)) & ((1 << digits) - 1)
        return (whole.to(like.dtype) + 0.5) * 2.0**-digits


def _signed(number: int) -> int:
    return number - (1 << 64)


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mixed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The finaliser of SplitMix64 ([Steele et al. 2014](https://doi.org/10.1145/2714064.2660195))."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """A logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
