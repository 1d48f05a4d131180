r"""Operations and memory of a forward pass or training step, by formulas.

**Operations** are those of matrix products, two for each multiplication and addition. With $t$
tokens, $P$ query-key pairs over all heads, $m$ keys, $H$ heads of size $d$, a forward pass has

- projections and MLP: $2 t$ times their weights, in each layer;
- softmax attention: $4 P d$ in each layer, scores and values;
- upward path: three maps in each chosen layer ($f_3$, and $f_1$, $f_2$ for shape and scale),
  $2 P m$ each over keys, $2 P H$ each over heads;
- noise per key: none with kernels; without them $4 P c$ in each chosen layer for $c$ more columns
  of queries, keys and values, and none for a single query;
- the language-model head: $2 t$ times its weights.

Backward has two products for each of these, or fewer if a frozen base needs no gradients. The
prior's MLP of width $w$, for the KL in training, has $2 (d w + w)$ forward for each key and key
head of a chosen layer.

**Memory**, in bytes:

- parameters: the base in half precision, belief parameters in float32;
- cache: keys and values of all layers, if texts are processed in chunks or extended;
- activations: of one layer; in training of all layers with gradients;
- logits, in float32, and their gradient in training;
- pairs: with fused kernels the upward states of all chosen layers, which the first layer computes
  at once, the outputs of the maps of one layer, and the explicit causal mask. In training the maps
  over keys keep their outputs for all layers, and backward has weights and score gradients of one
  layer, for as many examples as the kernels process at a time. Gradients of the states accumulate
  while activations are freed, since the first layer needs all of them; the larger of both ends
  counts. With noise per key the random numbers of all chosen layers, and the log factors and
  numbers of the KL of one layer, in training of all. Without kernels, torch's attention reads
  copies with more columns;
- training: a gradient for each trained parameter and Adam's two moments in float32.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.method import MethodConfig, normalized_layers
from babn.attention.softmax import SoftmaxConfig
from babn.conversion.calls import Call, Chain, choose
from babn.estimate.sizes import Shape, Workload
from babn.kernels.sdpa import ALIGNED
from babn.kernels.settings import NUMBERS, ROWS_OF_A_PART, examples_at_a_time

HALF = 2
"""Bytes of a number of the base, its activations and the upward path's tensors."""

WHOLE = 4
"""Bytes of a belief parameter, and of the numbers of a key."""

REFERENCE_BYTES = 48
"""Bytes of a pair in one call without kernels: a dozen float32 tensors at a time."""

KEY_NUMBERS = 8
"""Numbers of a key and head without kernels: energy, shape, its inverse, moment, scale, mean, noise
and sample."""


@dataclass(frozen=True)
class Estimate:
    """The cost of an attention method.

    Attributes:
        name: Name of the method.
        config: Configuration of the method.
        chain: The chosen layers.
        shape: The model.
        work: The workload.
        kernels: Whether fused kernels are used.
    """

    name: str
    config: MethodConfig
    chain: Chain
    shape: Shape
    work: Workload
    kernels: bool = True

    @cached_property
    def parameters_added(self) -> int:
        """Number of parameters that the method adds."""
        return self.chain.parameters(self.config)

    @cached_property
    def flops(self) -> dict[str, int]:
        """Operations of matrix products of each part."""
        shape, work, layers = self.shape, self.work, len(self.chain.calls)
        tokens = work.rows * sum(queries for queries, _ in work.passes)
        pairs = work.rows * shape.heads * sum(queries * keys for queries, keys in work.passes)
        by_keys = work.rows * shape.heads * sum(queries * keys**2 for queries, keys in work.passes)
        map_sizes = {"keys": by_keys, "heads": pairs * shape.heads}
        prior = work.keys * shape.kv_heads * (shape.head_dim + 1) * self._prior_width
        times = 3 if work.train else 1
        # Backward has a product for inputs and one for weights, which a frozen base does without.
        products = shape.layers + self._layers_backward * (1 if work.frozen else 2)
        found = {
            "linear": products * 2 * tokens * shape.layer_weights,
            "attention": (shape.layers + 2 * self._layers_backward) * 4 * pairs * shape.head_dim,
            "noise per key": times * layers * 4 * pairs * (ALIGNED if self._has_columns else 0),
            "upward path": times * layers * 3 * 2 * map_sizes.get(self._axis, 0),
            "prior": times * layers * 2 * prior,
            "head": (times - work.frozen) * 2 * work.logits * shape.hidden * shape.vocab,
        }
        return {part: number for part, number in found.items() if number}

    @cached_property
    def memory(self) -> dict[str, float]:
        """Bytes by purpose."""
        shape, work, added = self.shape, self.work, self.parameters_added
        base_trained = shape.parameters if work.train and not work.frozen else 0
        added_trained = added if work.train else 0
        cached = work.keys * shape.kv_heads * shape.head_dim if work.has_cache else 0
        moments = 2 * WHOLE * (base_trained + added_trained)
        return {
            "parameters": HALF * shape.parameters + WHOLE * added,
            "cache": HALF * 2 * shape.layers * cached,
            "activations": self._activations,
            "logits": WHOLE * work.logits * shape.vocab * (2 if work.train else 1),
            "pairs": self._per_key if self.config.biases_keys else self._per_pair,
            "training": HALF * base_trained + WHOLE * added_trained + moments,
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "method": self.name,
            "layers": [call.order for call in self.chain.calls],
            "parameters_added": self.parameters_added,
            "flops": {**self.flops, "total": sum(self.flops.values())},
            "memory": {**self.memory, "total": sum(self.memory.values())},
        }

    @property
    def _axis(self) -> str:
        """Axis of the maps of the upward path; empty for methods without one."""
        if isinstance(self.config, BeliefConfig) and self.config.has_upward_path:
            return self.config.upward
        return ""

    @property
    def _prior_width(self) -> int:
        """Width of the prior's MLP, which only training evaluates."""
        return getattr(self.config, "prior_hidden", 0) if self.work.train else 0

    @property
    def _has_columns(self) -> bool:
        """Whether torch's attention computes noise per key by more columns."""
        return self.config.biases_keys and not self.kernels and not self.work.one_query

    @property
    def _layers_backward(self) -> int:
        """Layers with gradients; with a frozen base they begin at the first converted layer."""
        first = self.chain.calls[0].order if self.work.frozen else 0
        return self.shape.layers - first if self.work.train else 0

    @property
    def _kept(self) -> int:
        """Chosen layers whose tensors exist at the same time: one, in training all."""
        return len(self.chain.calls) if self.work.train else 1

    @property
    def _activations(self) -> int:
        shape = self.shape
        heads = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
        layer = 4 * shape.hidden + heads + shape.mlp_matrices * shape.intermediate
        return HALF * self.work.most_queries * layer * max(self._layers_backward, 1)

    @property
    def _per_pair(self) -> float:
        """Bytes of tensors of query-key pairs."""
        if isinstance(self.config, SoftmaxConfig):
            return 0.0
        mask = self.work.most_pairs
        pairs, over_keys = self.shape.heads * mask, self._axis == "keys"
        states, maps = (len(self.chain.calls), 2) if self._axis else (0, 0)
        if not self.kernels:
            return float(pairs * (REFERENCE_BYTES * self._kept + WHOLE * states) + mask)
        # Memory is largest at the start of backward, or at its end with gradients of all states.
        start = HALF * pairs * (states + maps * (self._kept if over_keys else 1))
        if not self.work.train:
            return float(start + mask)
        freed = self._activations * (1 - 1 / self._layers_backward)
        end = HALF * pairs * (2 * states + maps) - freed
        maps_of_keys, maps_of_heads = (maps, 0) if over_keys else (0, maps)
        rows, numbers = self.work.rows, NUMBERS + maps_of_heads
        share = examples_at_a_time(rows, HALF * pairs // rows, maps_of_heads) / rows
        backward = HALF * (share * numbers + maps_of_keys) + WHOLE / ROWS_OF_A_PART
        return max(start, end) + pairs * backward + mask

    @property
    def _per_key(self) -> int:
        """Bytes of noise per key: numbers of keys, and copies for torch's attention."""
        shape, work, heads = self.shape, self.work, self.shape.heads
        if self.kernels and not work.one_query:
            kl = (3 if work.train else 1) * shape.kv_heads
            return WHOLE * work.keys * (len(self.chain.calls) * heads + self._kept * (heads + kl))
        numbers = KEY_NUMBERS * heads + self._prior_width * shape.kv_heads
        if self._has_columns:
            copied = work.most_queries * heads + work.keys * shape.kv_heads
            copies = copied * (shape.head_dim + 2 * ALIGNED)
        else:
            copies = heads * work.most_pairs  # the bias of a single query
        return self._kept * (WHOLE * work.keys * numbers + HALF * copies)


def estimates(
    shape: Shape,
    work: Workload,
    *,
    layers: str = "all",
    upward: tuple[str, ...] = ("keys", "heads"),
    kernels: bool = True,
) -> list[Estimate]:
    """The costs of softmax, BAM, BABN with noise per key, and BABN with noise per pair.

    Args:
        shape: The model.
        work: The workload.
        layers: The converted layers, as in `MethodConfig`; globs match `model.layers.N.self_attn`.
        upward: The axes of the upward maps of noise per pair to compare.
        kernels: Whether fused kernels are used.
    """
    calls = [
        Call(f"model.layers.{i}.self_attn", "", "", shape.heads, shape.head_dim, 1, 1, order=i)
        for i in range(shape.layers)
    ]
    chain = Chain("", choose(calls, normalized_layers(layers))[0])
    methods: dict[str, MethodConfig] = {
        "softmax": SoftmaxConfig(),
        "BAM": BamConfig(),
        "BABN per key": BeliefConfig(),
    }
    for axis in upward:
        methods[f"BABN per pair, {axis}"] = BeliefConfig.pairs(upward=axis, max_length=work.length)
    # Softmax has no belief parameters, so its base is trained.
    base = replace(work, frozen=False)
    return [
        Estimate(name, config, chain, shape, base if name == "softmax" else work, kernels)
        for name, config in methods.items()
    ]


COLUMNS = ("method", "added", "GiB", "of pairs", "TFLOP", "x softmax")
"""Added parameters, memory in total and of query-key pairs, and operations."""


def table(found: list[Estimate]) -> list[tuple[str, ...]]:
    """One row for each method, with operations relative to the first."""
    flops = [sum(each.flops.values()) for each in found]
    return [
        (
            each.name,
            _counted(each.parameters_added),
            _short(sum(each.memory.values()) / 2**30),
            _short(each.memory["pairs"] / 2**30),
            _short(own / 1e12),
            f"{own / flops[0]:.2f}",
        )
        for each, own in zip(found, flops, strict=True)
    ]


def _short(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(number: int) -> str:
    """A count in thousands, millions or billions."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
