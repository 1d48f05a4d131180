"""The KL of each attention call in a forward pass, reduced over the pairs that count."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import takewhile
from operator import add
from typing import Any

import torch
from torch import Tensor

from babn.attention.inputs import Inputs, Scores
from babn.attention.keys import KeyKL, KeyPosterior
from babn.attention.masking import is_rowwise, keys_seen, tokens_seen
from babn.attention.posterior import Posterior
from babn.conversion.state import BeliefState, Place
from babn.elbo import Counted, reduce_kl, reduce_kl_rows

Shape = tuple[int, int, int, int]
"""Examples, heads, queries and keys of a call."""


class LayerKL:
    """The KL of each call in a forward pass.

    With one variable per key, or with kernels for noise over pairs, the KL of all calls is reduced
    at once: it is small, and one launch for each call would take longer. This is done at the end of
    the pass, or if compilers trace it with the last call, so that the graph of the model contains
    it. Calls that checkpointing recomputes after the end of the pass are not kept again.
    """

    def __init__(self, state: BeliefState, across: Counted | None) -> None:
        self.state = state
        self.across = across
        self.calls = sum(len(chain.calls) for chain in state.chains)
        self.kl: dict[Place, Tensor] = {}
        self.joined: list[tuple[list[Place], Tensor]] = []
        self.keys: dict[Place, tuple[KeyKL, Tensor | None]] = {}
        self.rows: dict[Place, tuple[Tensor, Tensor | None, Tensor | None, Shape]] = {}
        self.recurrent: dict[Place, list[tuple[Tensor, Tensor | None]]] = {}
        self.finished = False
        self.tokens: dict[str, Tensor | None] = {}
        self.tokens_seen = _LastResult(tokens_seen)
        self.keys_that_count = _LastResult(keys_seen)
        self.totals: dict[Place, Tensor] = {}

    def keep(self, place: Place, posterior: Posterior, scores: Scores) -> None:
        """Keeps the KL of a call, if its method has one."""
        sizes = scores.phi.shape[-2:]
        if isinstance(posterior, KeyPosterior) and place not in self.recurrent:
            self.keep_keys(place, posterior.kl_parts(), scores.mask, *sizes)
            return
        rows = self._rows_that_count(place, scores.mask, *sizes)
        kl = posterior.kl()
        if kl is None:
            return
        mask = posterior.kl_mask(scores.mask, rows)
        if place not in self.recurrent:
            self._reduce([place], kl, mask)  # in recomputation the same value again
        elif not self.finished:
            self.recurrent[place].append((kl, mask))

    def keep_keys(
        self, place: Place, parts: KeyKL, mask: Tensor | None, queries: int, keys: int
    ) -> None:
        """Keeps the KL of a call with one variable per key."""
        rows = self._rows_that_count(place, mask, queries, keys)
        if not self.finished:
            self.keys[place] = parts, self.keys_that_count(mask, rows)
            if len(self.keys) == self.calls and torch.compiler.is_compiling():
                self._reduce_keys()

    def keep_rows(self, place: Place, kl_rows: Tensor, inputs: Inputs) -> None:
        """Keeps the KL of a call whose kernel has summed it over keys."""
        rows = self._rows_that_count(place, inputs.mask, *inputs.pairs[-2:])
        if self.across is not None or is_rowwise(inputs.mask):  # such a mask is too large to keep
            self.kl[place] = self._reduced_rows(kl_rows, rows, inputs.mask, inputs.pairs, place)
        elif not self.finished:
            self.rows[place] = kl_rows, rows, inputs.mask, inputs.pairs
            if len(self.rows) == self.calls and torch.compiler.is_compiling():
                self._reduce_rows()

    def per_layer(self) -> tuple[dict[str, Tensor], Tensor | None]:
        """The KL of each call, by name, in call order, and its sum, if there are any.

        Call it once, at the end of the pass.
        """
        self._reduce_keys()
        self._reduce_recurrent()
        self._reduce_rows()
        self.recurrent, self.finished = {}, True
        sums = [kl.sum() for _, kl in self.joined]
        if self.kl:
            sums.append(torch.stack([*self.kl.values()]).sum())
        for places, kl in self.joined:
            self.kl |= zip(places, kl.unbind(), strict=True)
        found = {self.state.layer_name(place): self.kl[place] for place in sorted(self.kl)}
        return found, reduce(add, sums) if sums else None

    def _reduce_keys(self) -> None:
        alike: dict[Any, list[Place]] = {}
        for place, (parts, mask) in self.keys.items():
            alike.setdefault((parts.size(), None if mask is None else mask.shape), []).append(place)
        for places in alike.values():
            parts = KeyKL.joined([self.keys[place][0] for place in places])
            masks = [mask for place in places if (mask := self.keys[place][1]) is not None]
            kl = parts.elementwise().unflatten(0, (len(places), -1))
            self._reduce(places, kl, _stacked(masks) if masks else None)
        self.keys = {}

    def _reduce_recurrent(self) -> None:
        for place, calls in self.recurrent.items():
            if calls:
                masks = [mask for _, mask in calls if mask is not None]
                kl = torch.cat([kl for kl, _ in calls], -2)
                self._reduce([place], kl, torch.cat(masks, -2) if masks else None)

    def _reduce(self, places: list[Place], kl: Tensor, mask: Tensor | None) -> None:
        """Reduces the KL of a call, or of several along a first axis."""
        reduction = self.state.config.kl_reduction
        if kl.ndim == 4:
            self.kl[places[0]] = reduce_kl(kl, mask, reduction, self._counted(places[0]))
        elif self.across is None:
            self.joined.append((places, reduce_kl(kl, mask, reduction)))
        else:
            for i, place in enumerate(places):
                self._reduce([place], kl[i], None if mask is None else mask[i])

    def _reduce_rows(self) -> None:
        alike: dict[Any, list[Place]] = {}
        for place, (_, *masks, pairs) in self.rows.items():
            kind = pairs, *(None if x is None else x.shape for x in masks)
            alike.setdefault(kind, []).append(place)
        for (pairs, *_), places in alike.items():
            kl, rows, mask = (
                None if each[0] is None else _stacked(each)
                for each in zip(*(self.rows[place][:3] for place in places), strict=True)
            )
            assert kl is not None
            self.joined.append((places, self._reduced_rows(kl, rows, mask, pairs, places[0])))
        self.rows = {}

    def _reduced_rows(
        self, kl_rows: Tensor, rows: Tensor | None, mask: Tensor | None, pairs: Shape, place: Place
    ) -> Tensor:
        reduction = self.state.config.kl_reduction
        return reduce_kl_rows(kl_rows, rows, mask, pairs, reduction, self._counted(place))

    def _counted(self, place: Place) -> Counted | None:
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
        self, place: Place, mask: Tensor | None, queries: int, keys: int
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
            self.tokens[call.path] = None if mask is None else self.tokens_seen(mask)
        cached = not call.crossed and queries != keys
        if cached or all(tokens is None for tokens in self.tokens.values()):
            return None
        tokens = self.tokens[nearest(call.path, self.tokens)]
        return None if tokens is None or tokens.shape[-1] != queries else tokens


class _LastResult:
    """A function that keeps its last result, since the layers of a model share a mask."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.arguments: tuple[Any, ...] | None = None
        self.result: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function unless the arguments are the same objects as last time."""
        before = self.arguments
        if before is None or any(x is not y for x, y in zip(before, arguments, strict=True)):
            self.arguments, self.result = arguments, self.function(*arguments)
        return self.result


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors along a first axis, without copies if they are all one."""
    if all(each is tensors[0] for each in tensors):
        return tensors[0].expand(len(tensors), *tensors[0].shape)
    return torch.stack([*tensors])


def nearest(path: str, others: Iterable[str]) -> str:
    """The path with the longest common prefix with `path`; the last of several."""

    def shared(other: str) -> int:
        pairs = zip(path.split("."), other.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(reversed([*others]), key=shared)
