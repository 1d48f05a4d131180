"""Sources of noise: torch's generators, or a function of seed, layer, head, query and key.

The random numbers of the latter are hashes of these indices. Their arithmetic is on 32-bit words
held in int64 tensors, so that every device gives the same bits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from babn.distributions.noise import Noise, filled
from babn.distributions.special import Floats
from babn.errors import SamplesError

EVERY_QUERY = 0x7FFFFFFF
"""The query index of noise that all queries share, beyond the length of any text."""

AHEAD = 256
"""Keys after the last one whose numbers are computed with it, for the next steps of generation."""

WORD = 0xFFFFFFFF
FIRST, SECOND, GOLDEN = 0x21F0AAAD, 0x735A2D97, 0x1E3779B1
"""Odd multipliers below 2^31, so that a product with a 32-bit word fits into 63 bits."""

STREAMS = 0x2545F491, 0x6A09E667
"""Start values of the two words of a row; rows that collide in one word differ in the other."""


class NoiseLike(ABC):
    """A source of noise for one attention call.

    Attributes:
        seeds: What the noise depends on; `None` for torch's global generator.

    Example:
        >>> GLOBAL_NOISE.uniform(torch.zeros(2, 1, 1, 5), queries=3).shape
        torch.Size([2, 1, 1, 5])
    """

    seeds: Sequence[int] | int | None

    @abstractmethod
    def uniform(self, like: Floats, queries: int | None = None) -> Floats:
        """Uniform numbers between 0 and 1.

        Args:
            like: A tensor of the same shape, dtype and device.
            queries: The number of queries that share the noise of `like`, which then has one row
                for all of them; by default each query has a row of its own.
        """

    def noise(self, noise: Noise, like: Floats, queries: int | None = None) -> Floats:
        """Standard noise; the arguments are those of `uniform`."""
        return noise.from_uniform(self.uniform(like, queries))


class NoiseSource(NoiseLike):
    """Noise from torch's global generator, or from one seed for each block of the batch.

    With seeds, the noise of a block depends on its seed alone, and not on the other blocks of the
    batch. Compilers cannot trace generators, so compiled models get hashes of the seed, of the
    numbers of the forward pass and of the draw in it, and of the index of each number.

    Args:
        seeds: One seed per block; `None` for the global generator.
        device: Device of the model, if it may be compiled or if blocks are mirrored.
        mirrored: For each block, whether its numbers are one minus the uniform numbers of its seed;
            by default none are.

    Example:
        >>> first, second = (NoiseSource([5]).uniform(torch.zeros(1, 3)) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """

    def __init__(
        self,
        seeds: Sequence[int] | None = None,
        device: torch.device | None = None,
        mirrored: Sequence[bool] = (),
    ) -> None:
        self.seeds: Sequence[int] | None = seeds
        self._has_mirrors = len(mirrored) > 0
        self._generators: dict[torch.device, list[torch.Generator]] = {}
        self._words: Tensor | None = None
        self._draws = 0
        if seeds is not None and device is not None:
            # Seeds in two words, mirrors and passes: tensors, since numbers recompile a model.
            flags = mirrored or [False] * len(seeds)
            words = [
                [seed & WORD, seed >> 32 & WORD, flag, 0]
                for seed, flag in zip(seeds, flags, strict=True)
            ]
            self._words = torch.tensor(words, device=device).t()

    def begin_forward(self) -> None:
        """Counts a forward pass; outside of it, since CUDA graphs cannot change their inputs."""
        if self._words is not None:
            self._words[3] += 1
            self._draws = 0

    def noise(self, noise: Noise, like: Floats, queries: int | None = None) -> Floats:
        """Standard noise with the shape of `like`."""
        if self._is_traced or self._has_mirrors:
            return super().noise(noise, like, queries)
        return noise.sample(like, self._on(like.device))

    def uniform(self, like: Floats, queries: int | None = None) -> Floats:
        """Uniform numbers between 0 and 1 with the shape of `like`."""
        if self.seeds is None:  # compilers have a kernel for this, and copies around `uniform_`
            return torch.rand_like(like, memory_format=torch.contiguous_format)
        if self._is_traced:
            return self._mirrored(self.hashed(like))
        return self._mirrored(
            filled(like, self._on(like.device), lambda x, g: x.uniform_(generator=g))
        )

    def _mirrored(self, u: Floats) -> Floats:
        """One minus the numbers of mirrored blocks."""
        if not self._has_mirrors:
            return u
        assert self._words is not None
        flags = self._words[2].bool().to(u.device).repeat_interleave(len(u) // len(self._words[2]))
        return torch.where(flags.view(-1, *[1] * (u.ndim - 1)), 1 - u, u)

    def hashed(self, like: Floats) -> Floats:
        """Uniform numbers between 0 and 1 with the shape of `like`, without generators."""
        assert self._words is not None
        self._draws += 1
        low, high, _, passes = self._words.to(like.device)[:, :, None, None].unbind()
        rows, keys = math.prod(like.shape[:-1]) // len(low), like.shape[-1]
        row = torch.arange(rows, device=like.device)[:, None]
        column = torch.arange(keys, device=like.device)
        found = uniform((low, high, passes, self._draws, row), column)
        return found.view(like.shape).to(like.dtype)

    def draw_seeds(self, device: torch.device, calls: int) -> Sequence[Int[Tensor, " block"]]:
        """For each call one seed per block, for kernels that generate their noise themselves."""
        # Twice as many as needed: Triton compiles a kernel once more for tensors that do not begin
        # at a multiple of 16 bytes.
        if self._is_traced:
            assert self._words is not None
            self._draws += 1
            call = torch.arange(2 * calls, device=device)[:, None]
            numbers = *self._words.to(device), self._draws, call
            words = [hashed(each, numbers) for each in STREAMS]
            return ((words[0] << 30) ^ words[1])[::2].unbind()
        generators: Sequence[torch.Generator | None] = self._on(device) or [None]
        drawn = [torch.randint(2**62, (calls, 2), generator=g, device=device) for g in generators]
        found = torch.stack(drawn, 2)
        if self._words is not None:
            found += self._words[2].to(device)  # kernels have no mirrors, so other seeds
        return found[:, 0].unbind()

    @property
    def _is_traced(self) -> bool:
        """Whether a compiler traces the call and there are seeds."""
        return self._words is not None and torch.compiler.is_compiling()

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


@dataclass(frozen=True)
class FixedNoise(NoiseLike):
    """The noise of whole texts, the same whichever tokens a forward pass computes.

    The noise of a pair depends on the seed of its sequence, on layer and head, and on the positions
    of its query and key in the sequence without padding. Hence a forward pass over all tokens and
    forward passes over one token at a time, with a cache, draw the same noise.

    Args:
        seeds: A seed for each sequence; or one seed, into which the row number is folded. If a
            forward pass has a multiple of that many rows, consecutive rows share a seed, as the
            beams of a search do.
        padding: Number of padding tokens on the left of each sequence; none by default.
        layer: Index of the attention call; `at` sets it and the fields below.
        past: Number of tokens in the cache.
        crossed: Whether keys come from another sequence than queries.

    Example:
        >>> noise = FixedNoise(seeds=[3, 4])
        >>> whole = noise.uniform(torch.zeros(2, 1, 6, 6))
        >>> cached = noise.at(layer=0, past=5, crossed=False)
        >>> torch.equal(whole[:, :, 5:], cached.uniform(torch.zeros(2, 1, 1, 6)))
        True
    """

    seeds: Sequence[int] | int
    padding: Sequence[int] = ()
    layer: int = 0
    past: int = 0
    crossed: bool = False
    _rows: dict[tuple[torch.device, int], tuple[Tensor, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _of_keys: dict[tuple[torch.device, int, bool, int, int], Tensor] = field(
        default_factory=dict, repr=False, compare=False
    )

    def at(self, layer: int, past: int, crossed: bool) -> "FixedNoise":
        """The noise of one attention call of the same texts."""
        return replace(self, layer=layer, past=past, crossed=crossed)

    def uniform(
        self, like: Float[Tensor, "batch head #query key"], queries: int | None = None
    ) -> Float[Tensor, "batch head #query key"]:
        """Uniform numbers between 0 and 1 with the shape of `like`."""
        batch, heads, rows, keys = like.shape
        end = self.past + (rows if queries is None else queries)
        # A sliding window's cache has dropped the keys before these; a static cache has spare room.
        first = 0 if self.crossed else max(end - keys, 0)
        if queries is not None:
            return self._shared(batch, heads, first, first + keys, like.device).to(like.dtype)
        query = torch.arange(self.past, end, device=like.device)[:, None]
        key = torch.arange(first, first + keys, device=like.device)
        return self._drawn(batch, heads, query, key).to(like.dtype)

    def _shared(
        self, batch: int, heads: int, start: int, end: int, device: torch.device
    ) -> Float[Tensor, "batch head 1 key"]:
        """The numbers of some keys, which all queries share, so that they are computed once."""
        place = device, self.layer, self.crossed, batch, heads
        known = None if torch.compiler.is_compiling() else self._of_keys.get(place)
        count = 0 if known is None else known.shape[-1]
        if count < end:
            key = torch.arange(count, end + AHEAD, device=device)
            more = self._drawn(batch, heads, None, key)
            known = more if known is None else torch.cat([known, more], -1)
            if not torch.compiler.is_compiling():
                self._of_keys[place] = known
        assert known is not None
        return known[..., start:end].contiguous()  # as kernels read them

    def _drawn(
        self, batch: int, heads: int, query: Int[Tensor, "query 1"] | None, key: Int[Tensor, " key"]
    ) -> Float[Tensor, "batch head query key"]:
        """The numbers of pairs, or of keys that all queries share."""
        low, high, padding = self._of_rows(batch, key.device)
        row = key.new_full((1, 1), EVERY_QUERY) if query is None else query - padding
        head = torch.arange(heads, device=key.device)[:, None, None]
        column = key - (0 if self.crossed else padding)
        return uniform((low, high, torch.full_like(low, self.layer), head, row), column)

    def _of_rows(self, count: int, device: torch.device) -> tuple[Tensor, ...]:
        """For each row of a forward pass the two words of its seed, and its padding."""
        if (device, count) in self._rows:
            return self._rows[device, count]
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
        self._rows[device, count] = values[0] & WORD, values[0] >> 32, values[1]
        return self._rows[device, count]


def mixed(word: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A bijection of 32-bit words in which every output bit depends on every input bit.

    The steps of a hash of low bias, [hash prospector](https://github.com/skeeto/hash-prospector).
    """
    word = word ^ (word >> 16)
    word = (word * FIRST) & WORD
    word = word ^ (word >> 15)
    word = (word * SECOND) & WORD
    return word ^ (word >> 15)


def hashed(stream: int, numbers: tuple[Int[Tensor, "..."] | int, ...]) -> Int[Tensor, "..."]:
    """Hashes several numbers, broadcast against each other, to one 32-bit word.

    The first of them is a tensor.
    """
    word = mixed((cast(Tensor, numbers[0]) + stream) & WORD)
    for number in numbers[1:]:
        word = mixed((word * GOLDEN + (number & WORD)) & WORD)
    return word


def uniform(rows: tuple[Int[Tensor, "..."] | int, ...], columns: Int[Tensor, "..."]) -> Tensor:
    """Uniform numbers strictly between 0 and 1, in float32, one for each row and column.

    Args:
        rows: The indices of a row.
        columns: The index of a column, broadcast against the rows.
    """
    first, second = (hashed(stream, rows) for stream in STREAMS)
    bits = mixed(mixed(((columns & WORD) * GOLDEN + first) & WORD) ^ second)
    # Midpoints of 2^23 equal intervals, which float32 represents exactly.
    value: Floats = (bits >> 9).float().add_(0.5).mul_(2.0**-23)
    return value
