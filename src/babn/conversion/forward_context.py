"""Computes the attention calls of one forward pass through a converted model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from babn.attention.inputs import Inputs, Scores
from babn.attention.key_forms import attention_with_factors
from babn.attention.keys import KeyPosterior
from babn.attention.method import AttentionMethod, Posterior
from babn.attention.noise_source import NoiseLike
from babn.attention.softmax import softmax_attention, takes_softmax
from babn.conversion.layer_kl import LayerKL
from babn.conversion.override import Mode, Override
from babn.conversion.state import BeliefState, CallSite
from babn.errors import ConversionError, UnsupportedAttentionError
from babn.kernels import dispatch

BYTES_PER_PAIR = 4 * 12
"""Memory of one query-key pair in the reference: a dozen float32 tensors at a time."""

BYTES_PER_FUSED_PAIR = 2 * 4
"""Memory of one pair with kernels: only the upward path's tensors, in half precision."""


@dataclass(frozen=True)
class Snapshot:
    """Call counts of modules and upward paths at one point of a forward pass."""

    counts: dict[str, int]
    checked: dict[str, int]
    states: dict[int, Any]


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
        self.past = 0 if override.fixed_noise is None else tokens_in(cache)
        self.with_kl = training or override.record_kl or torch.is_grad_enabled()
        self.grad_enabled = torch.is_grad_enabled()
        self.counts: dict[str, int] = {}
        self.checked: dict[str, int] = {}
        self.states: dict[int, Any] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        self.layer_kl = LayerKL(state, override.counted)
        self.is_softmax = state.config.kernel != "reference" and state.config.is_softmax(
            self.mode == "sample", self.with_kl
        )

    def posterior(
        self, site: CallSite, scores: Scores, bytes_per_pair: int = BYTES_PER_PAIR
    ) -> tuple[Posterior, NoiseLike | None]:
        """The posterior of the next call at `site`, and its noise source; `None` for the mean.

        Keeps the KL.
        """
        chain, step = place = self._next_place(site)
        self._note_memory(scores.phi.numel(), bytes_per_pair)
        method = self._method(chain)
        queries, keys = scores.phi.shape[-2:]
        states = self._upward(place, lambda: method.upward(scores), (queries, keys))
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
        if self.override.fixed_noise is None:
            return self.override.noise_source
        chain, step = place
        call = self.state.chains[chain].calls[step]
        return self.override.fixed_noise.at(call.order, self.past, call.crossed)

    def fused(self, site: CallSite, inputs: Inputs) -> Tensor | None:
        """The output of the next call at `site` by a kernel, or `None` if no kernel applies."""
        config, pairs = self.state.config, math.prod(inputs.pairs)
        if config.kernel == "reference" or self.needs_weights or inputs.needs_weights:
            return None
        sample = self.mode == "sample"
        if self.is_softmax and takes_softmax(inputs):
            self._next_place(site)
            self._note_memory(pairs, 1)
            return softmax_attention(inputs, self.dropout(inputs))
        if config.biases_keys and inputs.softcap is None:
            return self._with_factors(site, inputs)
        if site.recurrent or not self._takes_triton(inputs):
            return None
        inputs = inputs.with_causal_mask()
        chain, step = place = self._next_place(site)
        self._note_memory(pairs, BYTES_PER_FUSED_PAIR)
        method = self._method(chain)
        queries, keys = inputs.pairs[-2:]
        states = self._upward(
            place, lambda: dispatch.upward_states(method, inputs), (queries, keys)
        )
        request = dispatch.Request(sample, self.with_kl, self.override.noise_source, self.level)
        output, kl_rows = dispatch.attend(method, step, inputs, states, request)
        if kl_rows is not None:
            self.layer_kl.keep_rows(place, kl_rows, inputs)
        return output

    def _with_factors(self, site: CallSite, inputs: Inputs) -> Tensor:
        """Attention with a sample of the keys' variables as factors of the weights."""
        if not site.recurrent and self._takes_key_kernel(inputs):
            return self._by_key_kernel(site, inputs)
        posterior, noise = self.posterior(site, inputs.without_scores(), bytes_per_pair=1)
        if noise is None:
            return softmax_attention(inputs, self.dropout(inputs))
        assert isinstance(posterior, KeyPosterior)
        return attention_with_factors(inputs, posterior.log_sample(noise), self.dropout(inputs))

    def _takes_key_kernel(self, inputs: Inputs) -> bool:
        """Whether the kernel for one variable per key applies to a call."""
        if self.mode == "mean" or self.dropout(inputs) or not dispatch.takes_key_kernel(inputs):
            return False
        forced = self.state.config.kernel == "triton"
        return self._has_kernel(dispatch.why_not_triton(inputs, forced))

    def _by_key_kernel(self, site: CallSite, inputs: Inputs) -> Tensor:
        """A sample's output by the kernel; keeps the KL of the call."""
        chain, step = place = self._next_place(site)
        self._note_memory(math.prod(inputs.pairs), 1)
        request = dispatch.Request(True, self.with_kl, self._noise(place), self.level)
        output, parts = dispatch.attend_by_keys(self._method(chain), step, inputs, request)
        if parts is not None:
            self.layer_kl.keep_keys(place, parts, inputs)
        return output

    def _upward(
        self, place: tuple[int, int], compute: Callable[[], Any], sizes: tuple[int, int]
    ) -> Any:
        """The upward states of a chain, which its first call computes and its last one releases.

        States that are kept when a compiled model ends would become outputs with a gradient.
        """
        chain, step = place
        if chain not in self.states:
            self.states[chain], self.sizes[chain] = compute(), sizes
        if self.states[chain] is not None and self.sizes[chain] != sizes:
            queries, keys = self.sizes[chain]
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

    def _takes_triton(self, inputs: Inputs) -> bool:
        config = self.state.config
        forced = config.kernel == "triton"
        reason = dispatch.why_not_triton(inputs, forced)
        if not dispatch.has_kernels(config):
            reason = f"method {config.rule!r} has no kernel"
        elif config.needs_reference:
            reason = "kernels have a fixed floor of the shape, and smallest_k is another one"
        elif self.override.fixed_noise is not None and self.mode == "sample":
            reason = "kernels draw new noise in each forward pass, and the noise is fixed here"
        elif self.level != 1 and self.mode == "sample" and not self._knows_levels():
            reason = f"kernels draw noise at level 1, and the level is {self.level:g}"
        elif self.dropout(inputs):
            reason = "the model drops attention weights"
        return self._has_kernel(reason)

    def _has_kernel(self, reason: str | None) -> bool:
        """Whether there is no reason against a kernel; raises if kernels are required."""
        if reason is not None and self.state.config.kernel == "triton":
            raise UnsupportedAttentionError(
                f'kernel="triton", but {reason}. Use kernel="auto" to do without it.'
            )
        return reason is None

    def _knows_levels(self) -> bool:
        """Whether the kernels support noise levels other than 1; they then compute no KL."""
        return dispatch.supports_levels(self.state.config) and not self.with_kl

    def _method(self, chain: int) -> AttentionMethod:
        return cast(AttentionMethod, self.state.rules[chain])

    def _note_memory(self, pairs: int, each: int) -> None:
        if self.override.memory is not None:
            self.override.memory.append(pairs * each)

    def snapshot(self) -> Snapshot:
        """The current call counts and upward paths."""
        return Snapshot(dict(self.counts), dict(self.checked), dict(self.states))

    def restore(self, snapshot: Snapshot) -> None:
        """Restores the state of a snapshot."""
        self.counts, self.checked = dict(snapshot.counts), dict(snapshot.checked)
        self.states = dict(snapshot.states)

    def has_new_call(self, path: str) -> bool:
        """Whether a module has made a call since the last check."""
        count, before = self.counts.get(path, 0), self.checked.get(path, 0)
        self.checked[path] = count
        return count > before

    def passes_softmax(self, site: CallSite) -> bool:
        """Whether the next call at `site` is softmax attention; counts it if so."""
        if not self.is_softmax or self.override.memory is not None:
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
