"""The state of a forward pass through a converted model."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import Tensor, nn

from babn.attention.fixed_noise import FixedNoise
from babn.attention.fused import Request, softmax_attention, takes_softmax, why_not_triton
from babn.attention.inputs import Inputs, Scores
from babn.attention.masking import tokens_seen
from babn.attention.randomness import GLOBAL_RANDOMNESS, Drawing, Randomness
from babn.attention.rule import AttentionRule, Posterior
from babn.conversion.state import BeliefState, Site, belief_states
from babn.errors import (
    CheckpointingError,
    ConversionError,
    NotConvertedError,
    UnsupportedAttentionError,
)

Mode = Literal["mean", "sample"]

Counted = Callable[[Tensor | int], Tensor]
"""Makes a number that counts what is averaged over of another one."""

BYTES_PER_PAIR = 4 * 12
"""Memory of one query-key pair in the reference: float32, and a dozen tensors alive at a time."""

BYTES_PER_FUSED_PAIR = 2 * 4
"""With kernels only the upward path's tensors hold pairs, in half precision."""


@dataclass(frozen=True)
class Override:
    """What the caller of a forward pass asks for, in place of what the model's mode implies.

    Attributes:
        mode: Posterior mean or samples, in place of samples in training and the mean otherwise.
        randomness: Where samples take their noise from.
        fixed_noise: Takes its place where the noise belongs to a text and not to a pass.
        record_kl: Whether divergences are computed although nothing else asks for them.
        counted: Makes of the number that a divergence is divided by another one, which stands for
            the batches of several processes.
        add_kl: Whether the divergence is added to the loss in training.
        posteriors: A list to which every call's posterior is added.
        memory: A list to which the bytes are added that every call takes while it works.
    """

    mode: Mode | None = None
    randomness: Randomness = GLOBAL_RANDOMNESS
    fixed_noise: FixedNoise | None = None
    record_kl: bool = False
    counted: Counted | None = None
    add_kl: bool = True
    posteriors: list[tuple[str, Posterior]] | None = None
    memory: list[int] | None = None


NO_OVERRIDE = Override()
"""Samples in training, the mean otherwise. One object, which torch.compile can refer to."""


@dataclass(frozen=True)
class Snapshot:
    """How often each module was called, and which upward paths were climbed, at some point."""

    counts: dict[str, int]
    climbed: dict[int, Any]


class Pass:
    """The state of one forward pass through a converted model."""

    def __init__(
        self,
        state: BeliefState,
        training: bool,
        override: Override,
        needs_weights: bool = False,
        cache: Any = None,
    ) -> None:
        self.state = state
        self.needs_weights = needs_weights or override.posteriors is not None
        self.override = override
        self.mode: Mode = override.mode or ("sample" if training else "mean")
        self.training = training
        self.past = 0 if override.fixed_noise is None else tokens_in(cache)
        self.with_kl = training or override.record_kl or torch.is_grad_enabled()
        self.grad_enabled = torch.is_grad_enabled()
        self.counts: dict[str, int] = {}
        self.climbed: dict[int, Any] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        self.kl: dict[tuple[int, int], Tensor] = {}
        self.tokens: dict[str, Tensor | None] = {}
        self.totals: dict[tuple[int, int], Tensor] = {}

    def weights(self, site: Site, scores: Scores) -> Tensor:
        """The attention weights of the next call of `site`; keeps its divergence."""
        place = self._next_place(site)
        self._note_memory(scores.phi.numel(), BYTES_PER_PAIR)
        chain, step = place
        rule = self._rule(chain)
        queries, keys = scores.phi.shape[-2:]
        climbed = self._climbed(place, lambda: rule.climb(scores), (queries, keys))
        posterior = rule(step, scores, climbed)
        if self.override.posteriors is not None:
            self.override.posteriors.append((self.state.layer_name(place), posterior))
        if self.with_kl:
            self._keep_divergence(place, posterior, scores)
        if self.mode == "mean":
            return posterior.mean_weights()
        return posterior.sample_weights(self._noise(place))

    def _noise(self, place: tuple[int, int]) -> Drawing:
        """Where the noise of a call comes from."""
        if self.override.fixed_noise is None:
            return self.override.randomness
        chain, step = place
        call = self.state.chains[chain].calls[step]
        return self.override.fixed_noise.at(call.order, self.past, call.crossed)

    def fused(self, site: Site, inputs: Inputs) -> Tensor | None:
        """The output of the next call of `site` by a kernel; `None` if there is none for it."""
        config, pairs = self.state.config, math.prod(inputs.pairs)
        if config.kernel == "reference" or self.needs_weights or inputs.needs_weights:
            return None
        sample = self.mode == "sample"
        if config.is_softmax(sample, self.with_kl) and takes_softmax(inputs):
            self._next_place(site)
            self._note_memory(pairs, 1)
            return softmax_attention(inputs, self.dropout(inputs))
        if not self._takes_triton(inputs):
            return None
        chain, step = place = self._next_place(site)
        self._note_memory(pairs, BYTES_PER_FUSED_PAIR)
        rule = self._rule(chain)
        queries, keys = inputs.pairs[-2:]
        climbed = self._climbed(place, lambda: rule.climb_fused(inputs), (queries, keys))
        request = Request(sample, self.with_kl, self.override.randomness)
        result = rule.fused(step, inputs, climbed, request)
        if result.kl_rows is not None:
            self._keep_rows(place, result.kl_rows, inputs)
        return result.output

    def _climbed(
        self, place: tuple[int, int], climb: Callable[[], Any], sizes: tuple[int, int]
    ) -> Any:
        """The upward path of a chain, which its first call climbs and its last one gives up.

        What is still kept when a compiled model ends is one of its results, with a gradient.
        """
        chain, step = place
        if chain not in self.climbed:
            self.climbed[chain], self.sizes[chain] = climb(), sizes
        if self.climbed[chain] is not None and self.sizes[chain] != sizes:
            queries, keys = self.sizes[chain]
            raise ConversionError(
                f"{self.state.layer_name(place)} has {sizes[0]} queries and {sizes[1]} keys, the "
                f"first call of its chain {queries} and {keys}. In the dry run they were alike: "
                "convert with example_inputs in which they differ, so that they become chains of "
                "their own."
            )
        if step == len(self.state.chains[chain].calls) - 1:
            return self.climbed.pop(chain)
        return self.climbed[chain]

    def dropout(self, inputs: Inputs) -> float:
        """How much of the model's own dropout on attention weights stays."""
        return inputs.dropout if self.state.config.attention_dropout else 0.0

    def _takes_triton(self, inputs: Inputs) -> bool:
        config = self.state.config
        forced = config.kernel == "triton"
        reason = why_not_triton(inputs, forced)
        if not config.fusible:
            reason = f"rule {config.rule!r} has no kernel"
        elif self.override.fixed_noise is not None and self.mode == "sample":
            reason = "kernels draw fresh noise in each pass, and the noise of this one is fixed"
        elif self.dropout(inputs):
            reason = "the model drops attention weights"
        if reason is not None and forced:
            raise UnsupportedAttentionError(
                f'kernel="triton", but {reason}. Use kernel="auto", which then takes the reference.'
            )
        return reason is None

    def _rule(self, chain: int) -> AttentionRule:
        rule = self.state.rules[chain]
        assert isinstance(rule, AttentionRule)
        return rule

    def _note_memory(self, pairs: int, each: int) -> None:
        if self.override.memory is not None:
            self.override.memory.append(pairs * each)

    def snapshot(self) -> Snapshot:
        """How far the pass has come."""
        return Snapshot(dict(self.counts), dict(self.climbed))

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to where a snapshot was taken."""
        self.counts, self.climbed = dict(snapshot.counts), dict(snapshot.climbed)

    def leaves_out(self, site: Site) -> bool:
        """Whether the next call of `site` is of a layer that keeps softmax; it then counts."""
        count = self.counts.get(site.path, 0)
        left = count < len(site.places) and site.places[count] is None
        if left:
            self.counts[site.path] = count + 1
        return left

    def _next_place(self, site: Site) -> tuple[int, int]:
        count = self.counts.get(site.path, 0)
        self.counts[site.path] = count + 1
        if count >= len(site.places):
            raise ConversionError(
                f"{site.path} was called {count + 1} times in one forward pass, but "
                f"{len(site.places)} times in the dry run. Convert with example_inputs that make "
                "the model take the same path as real inputs do."
            )
        place = site.places[count]
        assert place is not None
        return place

    def _keep_divergence(
        self, place: tuple[int, int], posterior: Posterior, scores: Scores
    ) -> None:
        divergence = posterior.divergence()
        if divergence is None:
            return
        queries, keys = scores.phi.shape[-2:]
        rows = self._rows_that_count(place, scores.mask, queries, keys)
        mask = scores.mask
        if rows is not None:
            mask = rows.unsqueeze(-1) if mask is None else mask & rows.unsqueeze(-1)
            mask = mask.expand(*mask.shape[:-1], keys)
        # Recomputation under checkpointing comes here again and finds the same value.
        reduction = self.state.config.kl_reduction
        self.kl[place] = reduce_divergence(divergence, mask, reduction, self._counted(place))

    def _keep_rows(self, place: tuple[int, int], kl_rows: Tensor, inputs: Inputs) -> None:
        rows = self._rows_that_count(place, inputs.mask, *inputs.pairs[-2:])
        reduction = self.state.config.kl_reduction
        self.kl[place] = reduce_rows(
            kl_rows, rows, inputs.mask, inputs.pairs, reduction, self._counted(place)
        )

    def _counted(self, place: tuple[int, int]) -> Counted | None:
        """What the override makes of counts; asks other processes once, not in recomputation."""
        across = self.override.counted
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

    def kl_per_layer(self) -> dict[str, Tensor]:
        """The divergence of each call, by name, in call order."""
        return {self.state.layer_name(place): self.kl[place] for place in sorted(self.kl)}


def tokens_in(cache: Any) -> int:
    """How many tokens a cache of transformers has seen."""
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0


def nearest(path: str, others: Iterable[str]) -> str:
    """The path that shares the most levels with another from the root on; the last of several."""

    def shared(other: str) -> int:
        pairs = zip(path.split("."), other.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(reversed([*others]), key=shared)


def reduce_divergence(
    divergence: Tensor, mask: Tensor | None, reduction: str, counted: Counted | None = None
) -> Tensor:
    """Mean over the pairs that take part, or the sum for each example averaged over the batch."""
    count: Tensor | int = divergence.shape[0]
    if reduction != "sum":
        count = divergence.numel() if mask is None else mask.expand_as(divergence).sum()
    if mask is not None:
        divergence = divergence.masked_fill(~mask, 0.0)
    return _divided(divergence.sum(), count, counted)


def _divided(total: Tensor, count: Tensor | int, counted: Counted | None) -> Tensor:
    if counted is not None:
        return total / counted(count)
    return total / (count.clamp(min=1) if isinstance(count, Tensor) else count)


def reduce_rows(
    kl_rows: Tensor,
    rows: Tensor | None,
    mask: Tensor | None,
    pairs: tuple[int, int, int, int],
    reduction: str,
    counted: Counted | None = None,
) -> Tensor:
    """The same from sums over keys, with the rows and pairs that take part."""
    if rows is not None:
        kl_rows = kl_rows.masked_fill(~rows, 0.0)
    if reduction == "sum":
        return _divided(kl_rows.sum(), pairs[0], counted)
    if mask is None and rows is None:
        return _divided(kl_rows.sum(), math.prod(pairs), counted)
    seen = torch.ones(pairs[-1:], dtype=torch.bool, device=kl_rows.device) if mask is None else mask
    seen = seen if rows is None else seen & rows.unsqueeze(-1)
    count = seen.sum() * (math.prod(pairs) // seen.numel())
    return _divided(kl_rows.sum(), count, counted)


class _Local(threading.local):
    """Each thread has its own passes and overrides, so one model can serve several threads."""

    def __init__(self) -> None:
        self.passes: list[tuple[nn.Module | None, Pass]] = []
        self.overrides: list[tuple[BeliefState, Override]] = []


_local = _Local()


def begin(
    module: nn.Module, state: BeliefState, needs_weights: bool = False, cache: Any = None
) -> None:
    """Enters a module of a converted model: a new pass, or one more level of the current one.

    No module is inside itself: if it is there already, an interruption left it behind.
    """
    for depth, (entered, _) in enumerate(_local.passes):
        if entered is module:
            del _local.passes[depth:]
            break
    current = active_pass()
    if current is None or current.state is not state:
        state.last_kl = None
        current = Pass(state, module.training, active_override(state), needs_weights, cache)
    _local.passes.append((module, current))


def end(module: nn.Module) -> Pass | None:
    """Leaves a module; gives back the pass if this was its outermost level."""
    passes = _local.passes
    if not passes or passes[-1][0] is not module:  # an earlier hook failed before ours began
        return None
    _, finished = passes.pop()
    return None if active_pass() is finished else finished


def current_pass(site: Site) -> Pass:
    """The pass that an attention call belongs to."""
    current = active_pass()
    if current is None and torch._C._current_graph_task_id() != -1:
        raise CheckpointingError(
            f"{site.path} is recomputed by a checkpoint that does not know its forward pass. Use "
            "babn.checkpoint in place of torch.utils.checkpoint.checkpoint."
        )
    if current is None:
        raise NotConvertedError(
            f"{site.path} was called outside the model that was converted, so its upward path has "
            "no beginning. Call the converted model itself (or revert it first)."
        )
    return current


def active_pass() -> Pass | None:
    """The innermost pass of this thread, if any."""
    return _local.passes[-1][1] if _local.passes else None


@contextmanager
def resumed(forward_pass: Pass, snapshot: Snapshot) -> Iterator[None]:
    """Goes on with a pass at an earlier point, as recomputation under checkpointing does."""
    later = forward_pass.snapshot()
    forward_pass.restore(snapshot)
    _local.passes.append((None, forward_pass))
    try:
        yield
    finally:
        _local.passes.pop()
        forward_pass.restore(later)


def active_override(state: BeliefState) -> Override:
    """What the innermost `overriding` of this thread asks of a state's passes."""
    for owner, override in reversed(_local.overrides):
        if owner is state:
            return override
    return NO_OVERRIDE


@contextmanager
def overriding(model: nn.Module, **changes: Any) -> Iterator[None]:
    """Changes fields of the override for the passes of a converted model in this thread."""
    states = belief_states(model)
    _local.overrides += [(state, replace(active_override(state), **changes)) for state in states]
    try:
        yield
    finally:
        del _local.overrides[-len(states) :]
