"""Noise that belongs to a place: a function of seed, layer, head, query and key."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from babn.attention.counters import uniform
from babn.attention.noise_source import fold_in
from babn.distributions.noise import Noise
from babn.errors import SamplesError

EVERY_QUERY = 0x7FFFFFFF
"""Stands for the query in noise that all queries share; no text has so many tokens."""


@dataclass(frozen=True)
class FixedNoise:
    """Noise of a whole text, whichever part of it a pass computes.

    The noise of a pair depends on the seed of its sequence, on layer and head, and on how many
    tokens of the sequence come before its query and before its key. Hence a pass over all tokens
    and passes over one token at a time, with a cache, draw the same.

    Attributes:
        seeds: A seed for each sequence; or one from which row number and seed make them. If a pass
            has a multiple of so many rows, as many neighbours share a seed: the beams of a search.
        padding: How many tokens each sequence is padded with on its left; none by default.
    """

    seeds: Sequence[int] | int
    padding: Sequence[int] = ()
    _on_device: dict[tuple[torch.device, int], tuple[Tensor, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def at(self, layer: int, past: int, crossed: bool) -> "PlacedNoise":
        """The noise of one attention call.

        Args:
            layer: Number of the call.
            past: Tokens that earlier passes have put into a cache.
            crossed: Whether keys come from another sequence than queries.
        """
        return PlacedNoise(self, layer, past, crossed)

    def rows(self, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """For each row of a pass two words of its seed, and its padding."""
        if (device, count) not in self._on_device:
            self._on_device[device, count] = self._rows(count, device)
        low, high, padding = self._on_device[device, count]
        return low, high, padding

    def _rows(self, count: int, device: torch.device) -> tuple[Tensor, ...]:
        if isinstance(self.seeds, int):
            seeds = [fold_in(self.seeds, row) for row in range(count)]
        else:
            seeds = list(self.seeds)
        if count % len(seeds):
            raise SamplesError(
                f"{count} rows cannot share {len(seeds)} seeds. Give one for each text, or one "
                "seed for any number of them."
            )
        padding = list(self.padding) or [0] * len(seeds)
        values = torch.tensor([seeds, padding], device=device)
        values = values.repeat_interleave(count // len(seeds), 1)[:, :, None, None, None]
        return values[0] & 0xFFFFFFFF, values[0] >> 32, values[1]


@dataclass(frozen=True)
class PlacedNoise:
    """The noise of one attention call under `FixedNoise`."""

    text: FixedNoise
    layer: int
    past: int
    crossed: bool

    def noise(
        self, noise: Noise, like: Float[Tensor, "batch head query key"]
    ) -> Float[Tensor, "batch head query key"]:
        """Standard noise with the shape of `like`."""
        return noise.from_uniform(self.uniform(like))

    def key_noise(
        self, noise: Noise, like: Float[Tensor, "batch head 1 key"], queries: int
    ) -> Float[Tensor, "batch head 1 key"]:
        """Standard noise of the keys, whichever `queries` of the text look at them."""
        everyone = torch.full((1, 1), EVERY_QUERY, device=like.device)
        return noise.from_uniform(self._drawn(like, everyone, queries))

    def uniform(
        self, like: Float[Tensor, "batch head query key"]
    ) -> Float[Tensor, "batch head query key"]:
        """Numbers between 0 and 1 with the shape of `like`."""
        queries = like.shape[2]
        _, _, padding = self.text.rows(len(like), like.device)
        places = torch.arange(self.past, self.past + queries, device=like.device)
        return self._drawn(like, places[:, None] - padding, queries)

    def _drawn(self, like: Tensor, query: Tensor, queries: int) -> Tensor:
        batch, heads, _, keys = like.shape
        low, high, padding = self.text.rows(batch, like.device)
        numbers = torch.arange(max(heads, keys), device=like.device)
        # A sliding window's cache has dropped the keys before these; a static one has room left.
        first_key = 0 if self.crossed else max(self.past + queries - keys, 0)
        key = numbers[:keys] + first_key - (0 if self.crossed else padding)
        layer = torch.full_like(low, self.layer)
        drawn = uniform((low, high, layer, numbers[:heads, None, None], query), key)
        return drawn.to(like.dtype)
