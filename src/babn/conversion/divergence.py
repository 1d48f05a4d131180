"""The divergences of a forward pass: which pairs count, and their means or sums."""

from collections.abc import Iterable
from itertools import takewhile

from torch import Tensor

from babn.attention.inputs import Inputs, Scores
from babn.attention.masking import tokens_seen
from babn.attention.rule import Posterior
from babn.conversion.state import BeliefState
from babn.elbo import Counted, reduce_kl, reduce_kl_rows


class Divergences:
    """The divergence of each call of a pass."""

    def __init__(self, state: BeliefState, across: Counted | None) -> None:
        self.state = state
        self.across = across
        self.kl: dict[tuple[int, int], Tensor] = {}
        self.tokens: dict[str, Tensor | None] = {}
        self.totals: dict[tuple[int, int], Tensor] = {}

    def keep(self, place: tuple[int, int], posterior: Posterior, scores: Scores) -> None:
        """Keeps the divergence of a call, if its rule has one."""
        divergence = posterior.kl()
        if divergence is None:
            return
        queries, keys = scores.phi.shape[-2:]
        rows = self._rows_that_count(place, scores.mask, queries, keys)
        mask = scores.mask
        if rows is not None:
            mask = rows.unsqueeze(-1) if mask is None else mask & rows.unsqueeze(-1)
            mask = mask.expand(*mask.shape[:-1], keys)
        mask = posterior.kl_mask(mask)
        # Recomputation under checkpointing comes here again and finds the same value.
        reduction = self.state.config.kl_reduction
        self.kl[place] = reduce_kl(divergence, mask, reduction, self._counted(place))

    def keep_rows(self, place: tuple[int, int], kl_rows: Tensor, inputs: Inputs) -> None:
        """Keeps that of a call whose kernel has summed it over keys."""
        rows = self._rows_that_count(place, inputs.mask, *inputs.pairs[-2:])
        reduction = self.state.config.kl_reduction
        self.kl[place] = reduce_kl_rows(
            kl_rows, rows, inputs.mask, inputs.pairs, reduction, self._counted(place)
        )

    def _counted(self, place: tuple[int, int]) -> Counted | None:
        """What the override makes of counts; asks other processes once, not in recomputation."""
        across = self.across
        if across is None:
            return None

        def counted(count: Tensor | int) -> Tensor:
            if place not in self.totals:
                self.totals[place] = across(count)
            return self.totals[place]

        return counted

    def _rows_that_count(
        self, place: tuple[int, int], mask: Tensor | None, queries: int, keys: int
    ) -> Tensor | None:
        """The rows of real queries, or `None` for all.

        In self-attention a token at which no query looks is padding, and its row is left out. The
        queries of cross-attention are the tokens of the self-attention before it; where several
        texts attend to themselves, of the one that is nearest to it in the model.
        """
        chain, step = place
        call = self.state.chains[chain].calls[step]
        if not call.crossed and queries == keys:
            self.tokens.pop(call.path, None)  # the latest comes last
            self.tokens[call.path] = None if mask is None else tokens_seen(mask)
        cached = not call.crossed and queries != keys
        tokens = self.tokens[nearest(call.path, self.tokens)] if self.tokens else None
        if tokens is None or cached or tokens.shape[-1] != queries:
            return None
        return tokens

    def per_layer(self) -> dict[str, Tensor]:
        """The divergence of each call, by name, in call order."""
        return {self.state.layer_name(place): self.kl[place] for place in sorted(self.kl)}


def nearest(path: str, others: Iterable[str]) -> str:
    """The path that shares the most levels with another from the root on; the last of several."""

    def shared(other: str) -> int:
        pairs = zip(path.split("."), other.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(reversed([*others]), key=shared)
