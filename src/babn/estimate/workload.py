"""What is done with a model: how many tokens, queries and keys its passes have."""

from dataclasses import dataclass
from math import ceil

from babn.errors import ConfigError
from babn.validation import check_count


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch of texts, read at once, in pieces, or continued by one token.

    Attributes:
        batch: Texts.
        length: Tokens of each.
        samples: Samples of attention, which share a pass as further texts.
        queries: Tokens read in one pass; 0 for all. With fewer, a cache holds the earlier ones.
        cached: Whether one more token is computed with all others in the cache.
        train: Whether it is a training step.
        frozen: Whether the base is frozen, and the belief parameters alone are trained.
    """

    batch: int = 1
    length: int = 512
    samples: int = 1
    queries: int = 0
    cached: bool = False
    train: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        for name in ("batch", "length", "samples"):
            check_count(name, getattr(self, name))
        if self.queries:
            check_count("queries", self.queries)
        if self.train and (self.queries or self.cached):
            raise ConfigError("train with queries or cached is not possible: training reads whole.")
        if self.frozen and not self.train:
            raise ConfigError("frozen=True is about training. Give train=True as well.")

    @property
    def rows(self) -> int:
        """Texts in a pass, all samples together."""
        return self.batch * self.samples

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Queries and keys of each pass."""
        if self.cached:
            return [(1, self.length)]
        size = min(self.queries or self.length, self.length)
        ends = [min((i + 1) * size, self.length) for i in range(ceil(self.length / size))]
        starts = [0, *ends[:-1]]
        return [(end - start, end) for start, end in zip(starts, ends, strict=True)]

    @property
    def tokens(self) -> int:
        """Tokens that go through the layers."""
        return self.rows * sum(queries for queries, _ in self.sizes)

    @property
    def logits(self) -> int:
        """Tokens that go through the head: all, or the last one where a cache is filled or used."""
        return self.rows if self.queries or self.cached else self.tokens

    @property
    def pairs(self) -> int:
        """Pairs of query and key in all passes, of one head. Masked ones count."""
        return self.rows * sum(queries * keys for queries, keys in self.sizes)

    @property
    def pairs_by_keys(self) -> int:
        """The same, each times the keys of its pass."""
        return self.rows * sum(queries * keys**2 for queries, keys in self.sizes)

    @property
    def keys(self) -> int:
        """Keys of all passes."""
        return self.rows * sum(keys for _, keys in self.sizes)

    @property
    def pairs_at_once(self) -> int:
        """Pairs of the largest pass."""
        return self.rows * max(queries * keys for queries, keys in self.sizes)

    @property
    def queries_at_once(self) -> int:
        """Tokens of the largest pass."""
        return self.rows * max(queries for queries, _ in self.sizes)
