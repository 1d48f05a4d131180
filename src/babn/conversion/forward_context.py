"""The state of one forward pass through a converted model, and the stack of active ones."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.inputs import Inputs, Scores
from babn.attention.keys import KeyPosterior
from babn.attention.method import AttentionMethod
from babn.attention.noise_source import FixedNoise, NoiseLike, NoiseSource
from babn.attention.posterior import Posterior
from babn.conversion.layer_kl import LayerKL
from babn.conversion.override import Mode, Override, active_override
from babn.conversion.state import BeliefState, CallSite, Place
from babn.errors import CheckpointingError, ConversionError, NotConvertedError
from babn.kernels import dispatch, key_inputs, pair_inputs
from babn.kernels.sdpa import attention_with_factors, softmax_attention

BYTES_PER_PAIR = {"reference": 4 * 12, "pair kernels": 2 * 4}
"""Temporary memory of one query-key pair: a dozen float32 tensors in the reference, the upward
path's tensors in half precision with kernels over pairs; none otherwise, which is counted as 1."""

Sizes = tuple[int, int]
"""Numbers of queries and keys."""

Snapshot = tuple[dict[str, int], dict[int, tuple[Any, Sizes | None]]]
"""Call counts of modules and upward states of chains at one point of a forward pass."""


class ForwardContext:
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
        # The level is fitted for predictions; training samples from the posterior itself.
        self.level = 1.0 if training and override.mode is None else state.level
        if self.level == 0:
            self.mode = "mean"
        self.training = training
        fixed = isinstance(override.noise_source, FixedNoise)
        cached = fixed and hasattr(cache, "get_seq_length")
        self.past = int(cache.get_seq_length()) if cached else 0  # tokens
        self.with_kl = training or override.record_kl or torch.is_grad_enabled()
        self.grad_enabled = torch.is_grad_enabled()
        self.counts: dict[str, int] = {}
        self.states: dict[int, tuple[Any, Sizes | None]] = {}
        self.methods = [cast(AttentionMethod, method) for method in state.rules]
        self.layer_kl = LayerKL(state, override.counted)
        self.request = dispatch.Request(self.mode == "sample", self.with_kl, self.level, fixed)

    def next_place(self, site: CallSite) -> Place | None:
        """Counts a call at `site`; returns its place, or `None` if the call keeps softmax."""
        count = self.counts.get(site.path, 0)
        self.counts[site.path] = count + 1
        number = 0 if site.recurrent else count
        if number >= len(site.places):
            raise ConversionError(
                f"{site.path} was called {count + 1} times in one forward pass, but "
                f"{len(site.places)} times in the dry run. Convert with example_inputs for which "
                "the model makes the same calls as for real inputs."
            )
        place = site.places[number]
        if site.recurrent and place is not None:
            self.layer_kl.recurrent.setdefault(place, [])
        return place

    def keeps_softmax(self, site: CallSite) -> bool:
        """Whether the next call at `site` is softmax attention; counts it if so."""
        softmax = dispatch.is_softmax(self.state.config, self.request)
        number = 0 if site.recurrent else self.counts.get(site.path, 0)
        kept = site.places[number : number + 1] == (None,)
        found = kept or (softmax and self.override.memory is None)
        if found:
            self.next_place(site)
        return found

    def posterior(self, place: Place, scores: Scores) -> tuple[Posterior, NoiseLike | None]:
        """The posterior of a call, and its noise source; `None` for the mean. Keeps the KL."""
        chain, step = place
        method = self.methods[chain]
        sizes = scores.phi.shape[2], scores.phi.shape[3]
        states = self._upward(place, lambda: method.upward(scores), sizes)
        posterior: Posterior = method(step, scores, states)
        if self.with_kl:
            self.layer_kl.keep(place, posterior, scores)
        if self.level != 1:
            posterior = posterior.at_level(self.level)
        if self.override.posteriors is not None:
            self.override.posteriors.append((self.state.layer_name(place), posterior))
        return posterior, self._noise(place) if self.mode == "sample" else None

    def _noise(self, place: Place) -> NoiseLike:
        """The noise source of a call."""
        source = self.override.noise_source
        if not isinstance(source, FixedNoise):
            return source
        chain, step = place
        call = self.state.chains[chain].calls[step]
        return source.at(call.order, self.past, call.crossed)

    def fused(
        self, place: Place, inputs: Inputs, dropout: float
    ) -> Float[Tensor, "batch query head dim"] | None:
        """The output of a call without its weights, or `None` for the reference. Keeps the KL."""
        how: dispatch.Implementation = "reference"
        if not (self.needs_weights or inputs.needs_weights):
            recurrent = place in self.layer_kl.recurrent
            how = dispatch.choose(self.state.config, inputs, self.request, dropout, recurrent)
        if self.override.memory is not None:
            self.override.memory.append(math.prod(inputs.pairs) * BYTES_PER_PAIR.get(how, 1))
        if how == "reference":
            return None
        if how == "key kernels":
            return self._by_key_kernels(place, inputs)
        with torch.autocast(inputs.query.device.type, enabled=False):
            if how == "pair kernels":
                return self._by_pair_kernels(place, inputs.with_causal_mask())
            by_torch = softmax_attention if how == "softmax" else partial(self._by_factors, place)
            return by_torch(inputs, dropout).transpose(1, 2)

    def _by_key_kernels(self, place: Place, inputs: Inputs) -> Tensor:
        """A call with one variable per key; autocast changes nothing, and leaving it takes time."""
        chain, step = place
        method, noise = self.methods[chain], self._noise(place)
        shared = self._upward(
            place, lambda: key_inputs.key_inputs(method, inputs, self.request, noise), None
        )
        output, parts = key_inputs.attend(method, step, inputs, shared, noise)
        if parts is not None:
            self.layer_kl.keep_keys(place, parts, inputs.mask, *inputs.pairs[-2:])
        return output

    def _by_factors(self, place: Place, inputs: Inputs, dropout: float) -> Tensor:
        """A call with one variable per key by torch's attention."""
        posterior, noise = self.posterior(place, inputs.without_scores())
        if noise is None:
            return softmax_attention(inputs, dropout)
        assert isinstance(posterior, KeyPosterior)
        return attention_with_factors(inputs, posterior.log_sample(noise), dropout)

    def _by_pair_kernels(self, place: Place, inputs: Inputs) -> Tensor:
        """A call with noise over pairs."""
        chain, step = place
        method, noise = self.methods[chain], self._noise(place)
        sizes = inputs.pairs[-2:] if pair_inputs.has_upward_path(self.state.config) else None
        shared = self._upward(
            place, lambda: pair_inputs.pair_inputs(method, inputs, self.request, noise), sizes
        )
        output, kl_rows = pair_inputs.attend(step, inputs, shared, self.request)
        if kl_rows is not None:
            self.layer_kl.keep_rows(place, kl_rows, inputs)
        return output

    def _upward(self, place: Place, compute: Callable[[], Any], sizes: Sizes | None) -> Any:
        """The upward states of a chain, which its first call computes and its last one releases.

        States that are kept when a compiled model ends would become outputs with a gradient.

        Args:
            place: Chain and step of the call.
            compute: Computes the states, and what else the calls of the chain share.
            sizes: Queries and keys, which must be those of the first call; `None` if any may be.
        """
        chain, step = place
        if chain not in self.states:
            self.states[chain] = compute(), sizes
        states, first = self.states[chain]
        if states is not None and first is not None and sizes is not None and first != sizes:
            raise ConversionError(
                f"{self.state.layer_name(place)} has {sizes[0]} queries and {sizes[1]} keys, the "
                f"first call of its chain {first[0]} and {first[1]}. In the dry run they were "
                "alike: convert with example_inputs in which they differ, so that they become "
                "separate chains."
            )
        if step == len(self.state.chains[chain].calls) - 1:
            del self.states[chain]
        return states

    def snapshot(self) -> Snapshot:
        """The current call counts and upward states."""
        return dict(self.counts), dict(self.states)

    def restore(self, snapshot: Snapshot) -> None:
        """Restores the state of a snapshot."""
        counts, states = snapshot
        self.counts, self.states = dict(counts), dict(states)


class _Local(threading.local):
    """Each thread has its own contexts, so one model can serve several threads."""

    def __init__(self) -> None:
        self.contexts: list[tuple[nn.Module | None, ForwardContext]] = []


_local = _Local()


def begin(
    module: nn.Module, state: BeliefState, needs_weights: bool = False, cache: Any = None
) -> bool:
    """Enters a module of a converted model; returns whether this opened a context.

    A module cannot be nested in itself, so an existing entry is left over from an interrupted pass.
    """
    for depth, (entered, _) in enumerate(_local.contexts):
        if entered is module:
            del _local.contexts[depth:]
            break
    current = active_context()
    opened = current is None or current.state is not state
    if current is None or opened:
        state.last_kl = None
        state.warn_of_unused_kl()
        override = active_override(state)
        if isinstance(override.noise_source, NoiseSource):
            override.noise_source.begin_forward()
        current = ForwardContext(state, module.training, override, needs_weights, cache)
    _local.contexts.append((module, current))
    return opened


def end(module: nn.Module) -> ForwardContext | None:
    """Leaves a module; returns the context if this was its outermost level."""
    contexts = _local.contexts
    if not contexts or contexts[-1][0] is not module:  # an earlier hook failed before ours began
        return None
    _, finished = contexts.pop()
    return None if active_context() is finished else finished


def current_context(site: CallSite) -> ForwardContext:
    """The context that an attention call belongs to."""
    current = active_context()
    if current is None and torch._C._current_graph_task_id() != -1:
        raise CheckpointingError(
            f"{site.path} is recomputed by a checkpoint that does not know its forward pass. Use "
            "babn.checkpoint in place of torch.utils.checkpoint.checkpoint, and for transformers "
            'models use_reentrant=False: activation_checkpointing_enable({"use_reentrant": False}).'
        )
    if current is None:
        raise NotConvertedError(
            f"{site.path} was called outside the converted model, so its upward path is missing. "
            "Call the converted model itself (or revert it first)."
        )
    return current


def active_context() -> ForwardContext | None:
    """The innermost context of this thread, if any."""
    return _local.contexts[-1][1] if _local.contexts else None


@contextmanager
def resumed(context: ForwardContext, snapshot: Snapshot) -> Iterator[None]:
    """Resumes a context at an earlier point, for recomputation under checkpointing."""
    later = context.snapshot()
    context.restore(snapshot)
    _local.contexts.append((None, context))
    try:
        yield
    finally:
        _local.contexts.pop()
        context.restore(later)
