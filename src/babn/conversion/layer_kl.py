"""The KL of each attention call in a forward pass, reduced over the pairs that count."""

from collections.abc import Iterable
from itertools import takewhile

from torch import Tensor

from babn.attention.inputs import Inputs, Scores
from babn.attention.masking import tokens_seen
from babn.attention.rule import Posterior
from babn.conversion.state import BeliefState
from babn.elbo import Counted, reduce_kl, reduce_kl_rows


class LayerKL:
    """The KL of each call in a forward pass."""

    def __init__(self, state: BeliefState, across: Counted | None) -> None:
        self.state = state
        self.across = across
        self.kl: dict[tuple[int, int], Tensor] = {}
        self.tokens: dict[str, Tensor | None] = {}
        self.totals: dict[tuple[int, int], Tensor] = {}

    def keep(self, place: tuple[int, int], posterior: Posterior, scores: Scores) -> None:
        """Keeps the KL of a call, if its method has one."""
        kl = posterior.kl()
        if kl is None:
            return
        queries, keys = scores.phi.shape[-2:]
        rows = self._rows_that_count(place, scores.mask, queries, keys)
        mask = scores.mask
        if rows is not None:
            mask = rows.unsqueeze(-1) if mask is None else mask & rows.unsqueeze(-1)
            mask = mask.expand(*mask.shape[:-1], keys)
        mask = posterior.kl_mask(mask)
        # Recomputation under checkpointing computes the same value again.
        reduction = self.state.config.kl_reduction
        self.kl[place] = reduce_kl(kl, mask, reduction, self._counted(place))

    def keep_rows(self, place: tuple[int, int], kl_rows: Tensor, inputs: Inputs) -> None:
        """Keeps the KL of a call whose kernel has summed it over keys."""
        rows = self._rows_that_count(place, inputs.mask, *inputs.pairs[-2:])
        reduction = self.state.config.kl_reduction
        self.kl[place] = reduce_kl_rows(
            kl_rows, rows, inputs.mask, inputs.pairs, reduction, self._counted(place)
        )

    def _counted(self, place: tuple[int, int]) -> Counted | None:
        """The count over all processes, which is gathered once and not in recomputation."""
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

        In self-attention a token to which no query attends is padding, and its row is left out. The
        queries of cross-attention are the tokens of the preceding self-attention; if there are
        several, of the one that is nearest in the model.
        """
        chain, step = place
        call = self.state.chains[chain].calls[step]
        if not call.crossed and queries == keys:
            self.tokens.pop(call.path, None)  # keeps the latest last
            self.tokens[call.path] = None if mask is None else tokens_seen(mask)
        cached = not call.crossed and queries != keys
        tokens = self.tokens[nearest(call.path, self.tokens)] if self.tokens else None
        if tokens is None or cached or tokens.shape[-1] != queries:
            return None
        return tokens

    def per_layer(self) -> dict[str, Tensor]:
        """The KL of each call, by name, in call order."""
        return {self.state.layer_name(place): self.kl[place] for place in sorted(self.kl)}


def nearest(path: str, others: Iterable[str]) -> str:
    """The path with the longest common prefix with `path`; the last of several."""

    def shared(other: str) -> int:
        pairs = zip(path.split("."), other.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(reversed([*others]), key=shared)
