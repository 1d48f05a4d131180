r"""Operations, bytes and instructions of a forward pass or training step, part by part.

Operations are those of matrix products, two for each multiplication and addition, forward. With
$t$ tokens, $P$ pairs of query and key over all heads, $m$ keys, $H$ heads of size $d$:

- projections and MLP: $2 t$ times their weights, in each layer;
- softmax attention: $4 P d$ in each layer, scores and values;
- maps of the upward path, three in each chosen layer ($f_3$, and $f_1$, $f_2$ for shape and scale;
  $f_3$ only once for layers that share a state): $2 P m$ each over keys, $2 P H$ each over heads;
- random attention: instructions for each pair of the chosen layers, counted in the kernels' machine
  code (`tools/count_instructions.py`); matrix products use other units. With noise per key
  they are for each key and head, in addition to $2 d$ for its squared distance, and the inputs and
  outputs of torch's attention are copied with a few more columns, or a single query has a bias;
- the prior's network, if the KL is needed: $2 (d w + w)$ for each key and key head;
- the language-model head: $2 t$ times its weights.

A training step has three times as many, or fewer if a frozen base needs no gradients. Bytes are the
minimum that parts read and write: weights once in each forward pass, inputs and outputs of
products, and tensors of pairs, which only the upward path has with fused kernels.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from babn.attention.belief import BeliefConfig
from babn.attention.method import ChainShape, MethodConfig
from babn.estimate.sizes import Shape, Workload
from babn.kernels.sdpa import ALIGNED

HALF = 2
"""Bytes of a number of the base, its activations and the upward path's tensors."""

WHOLE = 4
"""Bytes of a belief parameter, and of a number of the residual stream."""

INSTRUCTIONS = {"belief": (88, 154), "bam": (47, 57)}
"""Instructions per variable, forward and backward: shape, scale, noise, weights and KL."""

ADAM_TRAFFIC = 7 * WHOLE
"""Bytes that Adam moves for a parameter: gradient, weight and two moments read, three written."""


@dataclass(frozen=True)
class Part:
    """The cost of one part.

    Attributes:
        name: Name of the part.
        flops: Operations of matrix products.
        bytes: Bytes read and written.
        instructions: Scalar instructions of elementwise arithmetic.
    """

    name: str
    flops: float
    bytes: float
    instructions: float = 0.0

    def seconds(self, bandwidth: float, tflops: float, tips: float) -> float:
        """The longest of matrix products, memory traffic and arithmetic, at peak rates.

        Args:
            bandwidth: Memory bandwidth in TB/s.
            tflops: Matrix products in TFLOP/s.
            tips: Scalar instructions in trillions per second.
        """
        peaks = (self.flops, tflops), (self.bytes, bandwidth), (self.instructions, tips)
        return max(amount / (peak * 1e12) for amount, peak in peaks)


@dataclass(frozen=True)
class Plan:
    """A model, its workload, and the method of its chosen layers.

    Attributes:
        shape: The model.
        work: The workload.
        config: The method; `None` for softmax.
        chosen: Indices of the converted layers.
    """

    shape: Shape
    work: Workload
    config: MethodConfig | None
    chosen: tuple[int, ...]

    @cached_property
    def belief_parameters(self) -> int:
        """Number of parameters that the method adds."""
        if self.config is None:
            return 0
        steps = tuple(range(len(self.chosen)))
        with torch.device("meta"):
            method = self.config.build(ChainShape(self.shape.heads, self.shape.head_dim, steps))
        return sum(parameter.numel() for parameter in method.parameters())

    @property
    def per_key(self) -> bool:
        """Whether all queries share the noise of a key."""
        return self.config is not None and self.config.biases_keys

    @property
    def maps(self) -> int:
        """Number of upward maps for shape and scale in a layer."""
        if not isinstance(self.config, BeliefConfig) or self.per_key:
            return 0
        return (self.config.rho > 0) + (self.config.sigma > 0)

    @property
    def states(self) -> int:
        """Number of upward states."""
        if not isinstance(self.config, BeliefConfig) or not self.maps:
            return 0
        return math.ceil(len(self.chosen) / self.config.upward_share)

    @property
    def one_query(self) -> bool:
        """Whether every forward pass has one token for each text."""
        return all(queries == 1 for queries, _ in self.work.sizes)

    @property
    def pairs(self) -> int:
        """Pairs over all heads."""
        return self.shape.heads * self.work.pairs

    @property
    def trained(self) -> int:
        """Parameters that a training step updates."""
        if not self.work.train:
            return 0
        return self.belief_parameters + (0 if self.work.frozen else self.shape.parameters)

    @property
    def layers_backward(self) -> int:
        """Layers with gradients; with a frozen base they begin at the first converted layer."""
        if not self.work.train or not self.work.frozen:
            return self.shape.layers if self.work.train else 0
        return self.shape.layers - min(self.chosen)


def parts(plan: Plan) -> list[Part]:
    """The costs of all parts."""
    found = [
        _linear(plan),
        _between(plan),
        _attention(plan),
        _arithmetic(plan),
        _upward(plan),
        _prior(plan),
        _head(plan),
        Part("optimizer", 0.0, ADAM_TRAFFIC * plan.trained),
    ]
    return [part for part in found if part.flops or part.bytes or part.instructions]


def _linear(plan: Plan) -> Part:
    shape, work = plan.shape, plan.work
    weights = shape.attention_weights + shape.mlp_weights
    heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    inner = (4 if shape.mlp_matrices == 3 else 2) * shape.intermediate
    moved = work.tokens * (4 * shape.hidden + heads + inner) + len(work.sizes) * weights
    # Backward has one product for inputs and one for weights, which a frozen base does not need.
    passes = shape.layers + plan.layers_backward * (1 if work.frozen else 2)
    return Part("linear", passes * 2.0 * work.tokens * weights, passes * HALF * float(moved))


def _between(plan: Plan) -> Part:
    """Norms with residuals, and activations, each fused into one kernel.

    A norm reads the output of a product and the residual, and writes both; residuals are float32.
    """
    shape, work = plan.shape, plan.work
    norms = 2 * (2 * HALF + 2 * WHOLE) * shape.hidden
    activation = (3 if shape.mlp_matrices == 3 else 2) * HALF * shape.intermediate
    passes = shape.layers + 2 * plan.layers_backward
    return Part("between", 0.0, passes * float(work.tokens) * (norms + activation))


def _attention(plan: Plan) -> Part:
    shape, work = plan.shape, plan.work
    moved = 2 * work.tokens * shape.heads + 2 * work.keys * shape.kv_heads
    passes = shape.layers + 2 * plan.layers_backward
    flops = passes * 4.0 * plan.pairs * shape.head_dim
    return Part("attention", flops, passes * HALF * float(moved) * shape.head_dim)


def _arithmetic(plan: Plan) -> Part:
    if plan.config is None:
        return Part("random attention", 0.0, 0.0)
    forward, backward = INSTRUCTIONS.get(plan.config.name, (0, 0))
    each = forward + (backward if plan.work.train else 0)
    if plan.per_key:
        return _noise_per_key(plan, each)
    return Part("random attention", 0.0, 0.0, float(each) * len(plan.chosen) * plan.pairs)


def _noise_per_key(plan: Plan, each: int) -> Part:
    """Squared distances of keys, a variable for each key and head, and its use in attention.

    Copies are written and read, and so are their gradients.
    """
    shape, work, layers = plan.shape, plan.work, len(plan.chosen)
    times = 3 if work.train else 1
    numbers, variables = shape.kv_heads * shape.head_dim, shape.heads
    read = times * work.keys * float(HALF * numbers + 2 * WHOLE * variables)
    arithmetic = work.keys * float(2 * times * numbers + each * variables)
    columns = 0 if plan.one_query else ALIGNED
    flops = times * layers * 4.0 * plan.pairs * columns
    return Part("random attention", flops, layers * (read + _copied(plan)), layers * arithmetic)


def _copied(plan: Plan) -> float:
    """Bytes to copy queries, keys, values and outputs of a layer, or the bias of a single query."""
    shape, work = plan.shape, plan.work
    if plan.one_query:
        return 2 * HALF * float(plan.pairs)
    rows = 2 * shape.heads * work.tokens + 2 * shape.kv_heads * work.keys
    return (4 if work.train else 2) * HALF * float(rows) * (shape.head_dim + ALIGNED)


def _upward(plan: Plan) -> Part:
    config, layers = plan.config, len(plan.chosen)
    if not isinstance(config, BeliefConfig) or not plan.maps:
        return Part("upward path", 0.0, 0.0)
    if config.upward == "heads":
        each = 2.0 * plan.pairs * plan.shape.heads
    else:
        each = 2.0 * plan.shape.heads * plan.work.pairs_by_keys
    times = 3 if plan.work.train else 1
    # A state is written once and read by the maps, whose outputs are written and read; steps over
    # keys also read the previous state, which steps over heads keep in registers.
    moved = plan.states * (1 if config.upward == "heads" else 2) + layers * (1 + 2 * plan.maps)
    weights = len(plan.work.sizes) * WHOLE * plan.belief_parameters
    flops = (plan.states + layers * plan.maps) * each
    return Part("upward path", times * flops, times * (HALF * moved * plan.pairs + weights))


def _prior(plan: Plan) -> Part:
    width = getattr(plan.config, "prior_hidden", 0)
    if not plan.work.train or getattr(plan.config, "prior", "contextual") != "contextual":
        return Part("prior", 0.0, 0.0)
    shape, keys = plan.shape, plan.work.keys * plan.shape.kv_heads
    each = 2.0 * keys * (shape.head_dim * width + width)
    return Part("prior", 3 * len(plan.chosen) * each, 3.0 * len(plan.chosen) * HALF * keys)


def _head(plan: Plan) -> Part:
    shape, work = plan.shape, plan.work
    passes = (2 if work.frozen else 3) if work.train else 1
    moved = work.logits * (shape.hidden + shape.vocab) + shape.head_weights
    flops = passes * 2.0 * work.logits * shape.head_weights
    return Part("head", flops, passes * HALF * float(moved) if shape.vocab else 0.0)
