"""The workload of an estimate: numbers of tokens, queries and keys of its forward passes."""

from dataclasses import dataclass
from math import ceil

from babn.errors import ConfigError
from babn.validation import check_count


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch of texts that is processed at once, in chunks, or extended by one token.

    Attributes:
        batch: Number of texts.
        length: Tokens of each text.
        samples: Attention samples, which are batched as further texts.
        queries: Tokens per forward pass, with the earlier ones in a cache; 0 for all.
        cached: Whether one token is computed with all others in the cache.
        train: Whether it is a training step.
        frozen: Whether only the belief parameters are trained.
    """

    batch: int = 1
    length: int = 512
    samples: int = 1
    queries: int = 0
    cached: bool = False
    train: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        """Validates the fields."""
        for name in ("batch", "length", "samples"):
            check_count(name, getattr(self, name))
        if self.queries:
            check_count("queries", self.queries)
        if self.train and (self.queries or self.cached):
            raise ConfigError(
                "train=True is not possible with queries or cached: training reads whole texts."
            )
        if self.frozen and not self.train:
            raise ConfigError(
                "frozen=True needs train=True, since only training freezes parameters."
            )

    @property
    def rows(self) -> int:
        """Texts in a forward pass, including all samples."""
        return self.batch * self.samples

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Queries and keys of each forward pass."""
        if self.cached:
            return [(1, self.length)]
        size = min(self.queries or self.length, self.length)
        ends = [min((i + 1) * size, self.length) for i in range(ceil(self.length / size))]
        starts = [0, *ends[:-1]]
        return [(end - start, end) for start, end in zip(starts, ends, strict=True)]

    @property
    def tokens(self) -> int:
        """Number of tokens in all forward passes."""
        return self.rows * sum(queries for queries, _ in self.sizes)

    @property
    def logits(self) -> int:
        """Tokens for which the head is computed: all, or the last one with a cache."""
        return self.rows if self.queries or self.cached else self.tokens

    @property
    def pairs(self) -> int:
        """Query-key pairs of one head in all forward passes, including masked ones."""
        return self.rows * sum(queries * keys for queries, keys in self.sizes)

    @property
    def pairs_by_keys(self) -> int:
        """Sum over all pairs of the number of keys in their forward pass."""
        return self.rows * sum(queries * keys**2 for queries, keys in self.sizes)

    @property
    def keys(self) -> int:
        """Keys of all forward passes."""
        return self.rows * sum(keys for _, keys in self.sizes)

    @property
    def pairs_at_once(self) -> int:
        """Pairs of the largest forward pass."""
        return self.rows * max(queries * keys for queries, keys in self.sizes)

    @property
    def queries_at_once(self) -> int:
        """Tokens of the largest forward pass."""
        return self.rows * max(queries for queries, _ in self.sizes)
