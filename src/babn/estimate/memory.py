r"""Memory of a forward pass or training step, in bytes.

- parameters: the base in half precision, belief parameters in float32;
- cache: keys and values of all layers, if texts are processed in chunks or extended;
- activations: of one layer; in training of all layers with gradients;
- logits, in float32, and their gradient in training;
- pairs: with fused kernels the upward states of all chosen layers, which the first layer computes
  at once, the outputs of the maps of one layer, and the explicit causal mask. In training the maps
  over keys, and small ones over heads, keep their outputs for all layers, and backward has weights
  and score gradients of one layer, or of as many examples as the kernels process at a time.
  Gradients of the states accumulate while activations are freed, since the first layer needs all of
  them; the larger of both ends counts. With noise per key copies of the inputs and outputs of
  torch's attention with a few more columns, and in float32 a few numbers for each key and head: for
  one layer, in training for all;
- training: a gradient for each trained parameter and Adam's two moments in float32.
"""

from dataclasses import dataclass, fields

from babn.attention.belief import BeliefConfig
from babn.estimate.costs import HALF, WHOLE, Plan
from babn.kernels.sdpa import ALIGNED
from babn.kernels.settings import NUMBERS, ROWS_OF_A_PART, examples_at_a_time

REFERENCE_BYTES = 48
"""Bytes of a pair in one call without kernels: a dozen float32 tensors at a time."""


KEY_NUMBERS = 8
"""Numbers of a key and head: energy, shape, its inverse, moment, scale, mean, noise and sample."""


@dataclass(frozen=True)
class Memory:
    """Bytes by purpose."""

    parameters: float
    cache: float
    activations: float
    logits: float
    pairs: float
    training: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory(plan: Plan, kernels: bool = True) -> Memory:
    """Memory of a plan.

    Args:
        plan: Model, workload and method.
        kernels: Whether fused kernels are used.
    """
    shape, work = plan.shape, plan.work
    keys = work.rows * work.length if work.queries or work.cached else 0
    trained_base = 0 if work.frozen or not work.train else shape.parameters
    gradients = HALF * trained_base + WHOLE * (plan.trained - trained_base)
    return Memory(
        parameters=HALF * shape.parameters + WHOLE * plan.belief_parameters,
        cache=HALF * 2 * shape.layers * keys * shape.kv_heads * shape.head_dim,
        activations=_activations(plan),
        logits=WHOLE * work.logits * shape.vocab * (2 if work.train else 1),
        pairs=_pairs(plan, kernels),
        training=gradients + 2 * WHOLE * plan.trained,
    )


def _activations(plan: Plan) -> float:
    shape, tokens = plan.shape, plan.work.queries_at_once
    heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer = 4 * shape.hidden + heads + shape.mlp_matrices * shape.intermediate
    kept = plan.layers_backward if plan.work.train else 1
    return HALF * float(tokens) * layer * max(kept, 1)


def _pairs(plan: Plan, kernels: bool) -> float:
    work, config = plan.work, plan.config
    if config is None:
        return 0.0
    pairs, layers = plan.shape.heads * work.pairs_at_once, len(plan.chosen)
    kept = layers if work.train else 1
    if plan.per_key:
        return kept * _per_key(plan)
    states = plan.states
    if not kernels:
        return pairs * float(REFERENCE_BYTES * kept + WHOLE * states) + work.pairs_at_once
    size = HALF * float(pairs)
    over_keys = isinstance(config, BeliefConfig) and config.upward == "keys"
    results = size * plan.maps * (kept if over_keys else 1)
    backward = _backward(plan, over_keys) if work.train else 0.0
    begins = size * states + results + backward
    ends = size * (2 * states + plan.maps) + backward if work.train else 0.0
    gone = _activations(plan) * (1 - 1 / max(plan.layers_backward, 1))
    return max(begins, ends - gone) + work.pairs_at_once


def _per_key(plan: Plan) -> float:
    """Bytes of wider copies for torch's attention, and of shapes, noise and KL of a layer."""
    shape, work, config = plan.shape, plan.work, plan.config
    assert isinstance(config, BeliefConfig)
    numbers = KEY_NUMBERS * shape.heads + (
        config.prior_hidden * shape.kv_heads if work.train else 0
    )
    of_keys = WHOLE * float(work.rows * work.length) * numbers
    if plan.one_query:
        return of_keys + HALF * float(shape.heads * work.pairs_at_once)
    queries, keys = work.queries_at_once * shape.heads, work.rows * work.length * shape.kv_heads
    return of_keys + HALF * float(queries + keys) * (shape.head_dim + 2 * ALIGNED)


def _backward(plan: Plan, over_keys: bool) -> float:
    """Gradients of a layer: of a part of the batch, and of maps over keys and the prior."""
    examples = plan.work.rows
    pairs = plan.shape.heads * plan.work.pairs_at_once // examples
    maps = 0 if over_keys else plan.maps
    part = examples_at_a_time(examples, HALF * pairs, maps)
    prior = WHOLE / ROWS_OF_A_PART if plan.belief_parameters else 0.0
    whole = HALF * (plan.maps - maps) + prior
    return pairs * (part * HALF * (NUMBERS + maps) + examples * whole)
