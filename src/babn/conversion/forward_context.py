"""Computes the attention calls of one forward pass through a converted model."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from babn.attention.inputs import Inputs, Scores
from babn.attention.keys import KeyPosterior
from babn.attention.method import AttentionMethod
from babn.attention.noise_source import FixedNoise, NoiseLike
from babn.attention.posterior import Posterior
from babn.conversion.layer_kl import LayerKL
from babn.conversion.override import Mode, Override
from babn.conversion.state import BeliefState, CallSite
from babn.errors import ConversionError
from babn.kernels import dispatch, key_inputs, pair_inputs
from babn.kernels.sdpa import attention_with_factors, softmax_attention

BYTES_PER_PAIR = 4 * 12
"""Memory of one query-key pair in the reference: a dozen float32 tensors at a time."""

BYTES_PER_FUSED_PAIR = 2 * 4
"""Memory of one pair with kernels: only the upward path's tensors, in half precision."""


Snapshot = tuple[dict[str, int], dict[int, Any]]
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
        self.past = tokens_in(cache) if fixed else 0
        self.with_kl = training or override.record_kl or torch.is_grad_enabled()
        self.grad_enabled = torch.is_grad_enabled()
        self.counts: dict[str, int] = {}
        self.states: dict[int, Any] = {}
        self.sizes: dict[int, tuple[int, int] | None] = {}
        self.methods = [cast(AttentionMethod, method) for method in state.rules]
        self.layer_kl = LayerKL(state, override.counted)
        self.request = dispatch.Request(self.mode == "sample", self.with_kl, self.level, fixed)

    def posterior(
        self, site: CallSite, scores: Scores, bytes_per_pair: int = BYTES_PER_PAIR
    ) -> tuple[Posterior, NoiseLike | None]:
        """The posterior of the next call at `site`, and its noise source; `None` for the mean.

        Keeps the KL.
        """
        chain, step = place = self._next_place(site)
        self._note_memory(scores.phi.shape, bytes_per_pair)
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

    def _noise(self, place: tuple[int, int]) -> NoiseLike:
        """The noise source of a call."""
        source = self.override.noise_source
        if not isinstance(source, FixedNoise):
            return source
        chain, step = place
        call = self.state.chains[chain].calls[step]
        return source.at(call.order, self.past, call.crossed)

    def fused(self, site: CallSite, inputs: Inputs) -> Tensor | None:
        """The output of the next call at `site` without its weights, or `None` for the reference.

        Keeps the KL.
        """
        if self.needs_weights or inputs.needs_weights:
            return None
        dropout = self.dropout(inputs)
        how = dispatch.choose(self.state.config, inputs, self.request, dropout, site.recurrent)
        if how == "reference":
            return None
        if how == "key kernels":
            return self._by_key_kernels(site, inputs)
        with torch.autocast(inputs.query.device.type, enabled=False):
            if how == "factors":
                return self._by_factors(site, inputs, dropout)
            place = self._next_place(site)
            per_pair = BYTES_PER_FUSED_PAIR if how == "pair kernels" else 1
            self._note_memory(inputs.pairs, per_pair)
            if how == "softmax":
                return softmax_attention(inputs, dropout)
            return self._by_pair_kernels(place, inputs.with_causal_mask())

    def _by_key_kernels(self, site: CallSite, inputs: Inputs) -> Tensor:
        """A call with one variable per key; autocast changes nothing, and leaving it takes time."""
        chain, step = place = self._next_place(site)
        self._note_memory(inputs.pairs, 1)
        method, noise = self.methods[chain], self._noise(place)
        shared = self._upward(
            place, lambda: key_inputs.key_inputs(method, inputs, self.request, noise), None
        )
        output, parts = key_inputs.attend(method, step, inputs, shared, noise)
        if parts is not None:
            self.layer_kl.keep_keys(place, parts, inputs)
        return output

    def _by_factors(self, site: CallSite, inputs: Inputs, dropout: float) -> Tensor:
        """A call with one variable per key by torch's attention."""
        posterior, noise = self.posterior(site, inputs.without_scores(), bytes_per_pair=1)
        if noise is None:
            return softmax_attention(inputs, dropout)
        assert isinstance(posterior, KeyPosterior)
        return attention_with_factors(inputs, posterior.log_sample(noise), dropout)

    def _by_pair_kernels(self, place: tuple[int, int], inputs: Inputs) -> Tensor:
        """A call with noise over pairs."""
        chain, step = place
        method, noise = self.methods[chain], self._noise(place)
        sizes = inputs.pairs[-2:] if pair_inputs.has_upward_path(self.state.config) else None
        shared = self._upward(
            place, lambda: pair_inputs.pair_inputs(method, inputs, self.request, noise), sizes
        )
        output, kl_rows = pair_inputs.attend(method, step, inputs, shared, self.request)
        if kl_rows is not None:
            self.layer_kl.keep_rows(place, kl_rows, inputs)
        return output

    def _upward(
        self, place: tuple[int, int], compute: Callable[[], Any], sizes: tuple[int, int] | None
    ) -> Any:
        """The upward states of a chain, which its first call computes and its last one releases.

        States that are kept when a compiled model ends would become outputs with a gradient.

        Args:
            place: Chain and step of the call.
            compute: Computes the states, and what else the calls of the chain share.
            sizes: Queries and keys, which must be those of the first call; `None` if any may be.
        """
        chain, step = place
        if self.states.get(chain) is None:
            self.states[chain], self.sizes[chain] = compute(), sizes
        before = self.sizes[chain]
        if self.states[chain] is not None and before is not None and before != sizes:
            (queries, keys), sizes = before, sizes or before
            raise ConversionError(
                f"{self.state.layer_name(place)} has {sizes[0]} queries and {sizes[1]} keys, the "
                f"first call of its chain {queries} and {keys}. In the dry run they were alike: "
                "convert with example_inputs in which they differ, so that they become separate "
                "chains."
            )
        if step == len(self.state.chains[chain].calls) - 1:
            return self.states.pop(chain)
        return self.states[chain]

    def dropout(self, inputs: Inputs) -> float:
        """The rate of the model's own dropout on attention weights, if it is kept."""
        return inputs.dropout if self.state.config.attention_dropout else 0.0

    def _note_memory(self, pairs: tuple[int, ...], bytes_per_pair: int) -> None:
        if self.override.memory is not None:
            self.override.memory.append(math.prod(pairs) * bytes_per_pair)

    def snapshot(self) -> Snapshot:
        """The current call counts and upward states."""
        return dict(self.counts), dict(self.states)

    def restore(self, snapshot: Snapshot) -> None:
        """Restores the state of a snapshot."""
        counts, states = snapshot
        self.counts, self.states = dict(counts), dict(states)

    def passes_softmax(self, site: CallSite) -> bool:
        """Whether the next call at `site` is softmax attention; counts it if so."""
        softmax = dispatch.is_softmax(self.state.config, self.request)
        if not softmax or self.override.memory is not None:
            return False
        return self.leaves_out(site) or self._next_place(site) is not None

    def leaves_out(self, site: CallSite) -> bool:
        """Whether the next call at `site` keeps softmax; counts it if so."""
        count = self.counts.get(site.path, 0)
        number = 0 if site.recurrent else count
        left = number < len(site.places) and site.places[number] is None
        if left:
            self.counts[site.path] = count + 1
        return left

    def _next_place(self, site: CallSite) -> tuple[int, int]:
        count = self.counts.get(site.path, 0)
        self.counts[site.path] = count + 1
        count = 0 if site.recurrent else count
        if count >= len(site.places):
            raise ConversionError(
                f"{site.path} was called {count + 1} times in one forward pass, but "
                f"{len(site.places)} times in the dry run. Convert with example_inputs for which "
                "the model makes the same calls as for real inputs."
            )
        place = site.places[count]
        assert place is not None
        if site.recurrent:
            self.layer_kl.recurrent.setdefault(place, [])
        return place


def tokens_in(cache: Any) -> int:
    """Number of tokens in a cache of transformers."""
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
