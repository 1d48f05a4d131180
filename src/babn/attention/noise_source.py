"""Sources of noise: torch's generators, global or one for each block of a batch."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.distributions.noise import Noise, filled


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
        return noise.sample(like, self._on(like.device))

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
        if self.seeds is None:  # compilers have a kernel for this, and copies around `uniform_`
            return torch.rand_like(like, memory_format=torch.contiguous_format)
        return filled(like, self._on(like.device), lambda x, g: x.uniform_(generator=g))

    def draw_seeds(self, device: torch.device, calls: int) -> Sequence[Int[Tensor, " block"]]:
        """For each call one seed per block, for kernels that generate their noise themselves."""
        generators: Sequence[torch.Generator | None] = self._on(device) or [None]
        # Twice as many as needed: Triton compiles a kernel once more for tensors that do not begin
        # at a multiple of 16 bytes.
        drawn = [torch.randint(2**62, (calls, 2), generator=g, device=device) for g in generators]
        return torch.stack(drawn, 2)[:, 0].unbind()

    def _on(self, device: torch.device) -> list[torch.Generator] | None:
        if self.seeds is None:
            return None
        if device not in self._generators:
            self._generators[device] = [torch.Generator(device).manual_seed(s) for s in self.seeds]
        return self._generators[device]


GLOBAL_NOISE = NoiseSource()
"""Noise from torch's global generator."""


def fold_in(seed: int, number: int) -> int:
    """Derives the seed of one of many samples or sequences, as `jax.random.fold_in` does."""
    return (seed * 1_000_003 + number) % 2**63
