"""Where noise comes from."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

Sampler = Callable[[Tensor, torch.Generator | None], Tensor]


class Randomness:
    """Where noise comes from: torch's global generator, or one seed for each block of the batch.

    With seeds, the noise of a block depends on its seed alone, however many blocks share a pass.
    """

    def __init__(self, seeds: Sequence[int] | None = None) -> None:
        self.seeds = seeds
        self._generators: dict[torch.device, list[torch.Generator]] = {}

    def draw(self, sampler: Sampler, like: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Noise with the shape of `like`, block by block along its first axis."""
        if self.seeds is None:
            return sampler(like, None)
        generators = self._on(like.device)
        blocks = like.unflatten(0, (len(generators), -1))
        return torch.cat([sampler(b, g) for b, g in zip(blocks, generators, strict=True)])

    def _on(self, device: torch.device) -> list[torch.Generator]:
        if device not in self._generators:
            assert self.seeds is not None
            self._generators[device] = [torch.Generator(device).manual_seed(s) for s in self.seeds]
        return self._generators[device]


GLOBAL_RANDOMNESS = Randomness()
"""Noise from torch's global generator."""
