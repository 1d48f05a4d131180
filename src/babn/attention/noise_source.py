"""Sources of noise: torch's generators, or counter-based numbers per row."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.distributions.noise import Generators, Noise, filled


@runtime_checkable
class NoiseLike(Protocol):
    """A source of noise for one attention call.

    Example:
        >>> isinstance(GLOBAL_NOISE, NoiseLike)
        True
    """

    def noise(self, noise: Noise, like: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Standard noise with the shape of `like`."""
        ...

    def key_noise(
        self, noise: Noise, like: Float[Tensor, "batch head 1 key"], queries: int
    ) -> Float[Tensor, "batch head 1 key"]:
        """Standard noise that all `queries` of a call share."""
        ...

    def uniform(self, like: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Uniform numbers between 0 and 1 with the shape of `like`."""
        ...

    def key_uniform(
        self, like: Float[Tensor, "batch head 1 key"], queries: int
    ) -> Float[Tensor, "batch head 1 key"]:
        """Uniform numbers that all `queries` of a call share."""
        ...


class NoiseSource:
    """Noise from torch's global generator, or from one seed for each block of the batch.

    With seeds, the noise of a block depends on its seed alone, and not on the other blocks of the
    batch.

    Args:
        seeds: One seed per block; `None` for the global generator.

    Example:
        >>> first, second = (NoiseSource([5]).uniform(torch.zeros(1, 3)) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """

    def __init__(self, seeds: Sequence[int] | None = None) -> None:
        self.seeds = seeds
        self._generators: dict[torch.device, list[torch.Generator]] = {}

    def noise(self, noise: Noise, like: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Standard noise with the shape of `like`."""
        return noise.sample(like, self._generator(like.device))

    def key_noise(
        self, noise: Noise, like: Float[Tensor, "batch head 1 key"], queries: int
    ) -> Float[Tensor, "batch head 1 key"]:
        """Standard noise that all queries of a call share."""
        return self.noise(noise, like)

    def key_uniform(
        self, like: Float[Tensor, "batch head 1 key"], queries: int
    ) -> Float[Tensor, "batch head 1 key"]:
        """Uniform numbers that all queries of a call share."""
        return self.uniform(like)

    def uniform(self, like: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Uniform numbers between 0 and 1 with the shape of `like`."""
        generator = self._generator(like.device)
        return filled(like, generator, lambda x, g: x.uniform_(generator=g))

    def _generator(self, device: torch.device) -> Generators:
        return None if self.seeds is None else self._on(device)

    def draw_seeds(self, device: torch.device) -> Int[Tensor, " block"]:
        """One seed for each block, for kernels that generate their noise themselves."""
        generators = [None] if self.seeds is None else self._on(device)
        drawn = [torch.randint(2**62, (1,), generator=g, device=device) for g in generators]
        return torch.cat(drawn)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Continues with some rows of the batch; noise that is not per row ignores this."""

    def _on(self, device: torch.device) -> list[torch.Generator]:
        if device not in self._generators:
            assert self.seeds is not None
            self._generators[device] = [torch.Generator(device).manual_seed(s) for s in self.seeds]
        return self._generators[device]


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


GLOBAL_NOISE = NoiseSource()
"""Noise from torch's global generator."""


def fold_in(seed: int, number: int) -> int:
    """Derives the seed of one of many samples or sequences, as `jax.random.fold_in` does."""
    return (seed * 1_000_003 + number) % 2**63


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
