"""Where noise comes from."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


@runtime_checkable
class Source(Protocol):
    """A standard variable."""

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws with the shape, dtype and device of `like`."""
        ...

    def from_uniform(self, u: Tensor) -> Tensor:
        """Draws from uniform numbers."""
        ...


@runtime_checkable
class Drawing(Protocol):
    """Where the noise of an attention call comes from."""

    def draw(
        self, source: Source, like: Float[Tensor, "batch head query key"]
    ) -> Float[Tensor, "batch head query key"]:
        """Noise with the shape of `like`."""
        ...


class Randomness:
    """Where noise comes from: torch's global generator, or one seed for each block of the batch.

    With seeds, the noise of a block depends on its seed alone, however many blocks share a pass.
    """

    def __init__(self, seeds: Sequence[int] | None = None) -> None:
        self.seeds = seeds
        self._generators: dict[torch.device, list[torch.Generator]] = {}

    def draw(self, source: Source, like: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Noise with the shape of `like`, block by block along its first axis."""
        if self.seeds is None:
            return source.sample(like, None)
        generators = self._on(like.device)
        blocks = like.unflatten(0, (len(generators), -1))
        return torch.cat([source.sample(b, g) for b, g in zip(blocks, generators, strict=True)])

    def draw_seeds(self, device: torch.device) -> Int[Tensor, " block"]:
        """One seed for each block, for kernels that make their noise themselves."""
        generators = [None] if self.seeds is None else self._on(device)
        drawn = [torch.randint(2**62, (1,), generator=g, device=device) for g in generators]
        return torch.cat(drawn)

    def _on(self, device: torch.device) -> list[torch.Generator]:
        if device not in self._generators:
            assert self.seeds is not None
            self._generators[device] = [torch.Generator(device).manual_seed(s) for s in self.seeds]
        return self._generators[device]


GLOBAL_RANDOMNESS = Randomness()
"""Noise from torch's global generator."""


def mix_seed(seed: int, number: int) -> int:
    """The seed of one of many samples or sequences."""
    return (seed * 1_000_003 + number) % 2**63
