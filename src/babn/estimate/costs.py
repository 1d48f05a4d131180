r"""Parameters, memory and operations of attention methods in a forward pass, by formulas.

**Operations** are those of matrix products, two for each multiplication and addition. With $t$
tokens, $P$ query-key pairs over all heads, $m$ keys, and $H$ heads of size $d$:

- projections and MLP: $2 t$ times their weights, in each layer;
- softmax attention: $4 P d$ in each layer, scores and values;
- noise over pairs: three maps in each chosen layer, each $2 P m$ over keys or $2 P H$ over heads;
- the language-model head: $2 t$ times its weights.

**Memory** in bytes, with fused kernels:

- parameters: the base in half precision, belief parameters in float32;
- cache: keys and values of all layers, if texts are processed in chunks or extended;
- activations of one layer, and logits in float32;
- BAM: the mask;
- noise per key: the random numbers of all chosen layers, and the log factors and numbers of the KL
  of one layer;
- noise over pairs: the mask, the upward states of all chosen layers, which the first layer computes
  at once, and the outputs of the maps of one layer.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.method import MethodConfig, normalized_layers
from babn.attention.softmax import SoftmaxConfig
from babn.conversion.calls import Call, Chain, choose
from babn.errors import ConfigError

HALF, WHOLE = 2, 4
"""Bytes of a number of the base and of pairs, and of a belief parameter or a number of a key."""

MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields of configurations of mixtures of experts."""

EXAMPLE = "llama-2-7b"
"""Name of a model that needs no download."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer with one stack of self-attention layers.

    Attributes:
        hidden: Size of the hidden states.
        heads: Heads of queries.
        kv_heads: Heads of keys and values; fewer than `heads` with grouped queries.
        head_dim: Size of a head.
        layers: Layers.
        inner: Sizes of all inner states of the MLP together.
        vocab: Vocabulary size; 0 for a model without a language-model head.
        parameters: All parameters of the model.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    inner: int
    vocab: int
    parameters: int

    @property
    def projected(self) -> int:
        """Sizes of queries, keys, values and outputs of attention together."""
        return 2 * self.head_dim * (self.heads + self.kv_heads)


def example_shape() -> Shape:
    """The shape of Llama 2 7B."""
    from transformers import LlamaConfig

    return shape_of(LlamaConfig(architectures=["LlamaForCausalLM"]), EXAMPLE)


def shape_of(config: Any, name: str) -> Shape:
    """The shape of the model that a transformers configuration describes.

    Args:
        config: The configuration.
        name: Name of the model, for messages.
    """
    import torch
    import transformers

    text = config.get_text_config()
    stacked = not getattr(config, "is_encoder_decoder", False)
    named = all(hasattr(text, x) for x in ("hidden_size", "num_attention_heads", "vocab_size"))
    if not stacked or not named or any(getattr(text, field, None) for field in MIXTURES):
        raise ConfigError(
            f"{name} ({type(config).__name__}) is not covered. Give a text model with one stack of "
            "layers, which is neither an encoder-decoder nor a mixture of experts."
        )
    names = getattr(config, "architectures", None) or [""]
    kind = getattr(transformers, names[0], transformers.AutoModel.from_config)
    with torch.device("meta"):
        model: Any = kind(config)
    hidden, heads = text.hidden_size, text.num_attention_heads
    intermediate = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    gated = any("gate" in path for path, _ in model.named_modules())
    return Shape(
        hidden=hidden,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        layers=text.num_hidden_layers,
        inner=(3 if gated else 2) * (intermediate or 4 * hidden),
        vocab=text.vocab_size if model.get_output_embeddings() is not None else 0,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch of texts that is processed at once, in chunks, or extended by one token.

    Attributes:
        batch: Number of texts.
        length: Tokens of each text.
        queries: Tokens per forward pass, with the earlier ones in a cache; 0 for all.
        cached: Whether one token is computed with all others in the cache.
    """

    batch: int = 1
    length: int = 512
    queries: int = 0
    cached: bool = False

    @property
    def passes(self) -> list[tuple[int, int]]:
        """Queries and keys of a text in each forward pass."""
        if self.cached:
            return [(1, self.length)]
        size = self.queries or self.length
        ends = [*range(size, self.length, size), self.length]
        return [(end - start, end) for start, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class Estimate:
    """The cost of an attention method in a model.

    Attributes:
        name: Name of the method.
        parameters: Number of parameters that the method adds.
        memory: Bytes in total.
        noise: Bytes of what the method needs for query-key pairs or keys, beside softmax.
        flops: Operations of matrix products.
    """

    name: str
    parameters: int
    memory: int
    noise: int
    flops: int


def chosen_layers(shape: Shape, layers: str = "all") -> Chain:
    """The converted layers, as in `MethodConfig`; globs match `model.layers.N.self_attn`."""
    calls = [
        Call(f"model.layers.{i}.self_attn", "", "", shape.heads, shape.head_dim, 1, 1, order=i)
        for i in range(shape.layers)
    ]
    return Chain("", choose(calls, normalized_layers(layers))[0])


def estimates(shape: Shape, work: Workload, chain: Chain) -> list[Estimate]:
    """The costs of softmax, BAM, and BABN with noise per key and over pairs.

    Args:
        shape: The model.
        work: The workload.
        chain: The chosen layers.
    """
    chosen, heads, has_cache = len(chain.calls), shape.heads, work.cached or work.queries > 0
    keys = work.batch * work.length
    tokens = work.batch * sum(queries for queries, _ in work.passes)
    pairs = work.batch * heads * sum(queries * keys for queries, keys in work.passes)
    by_keys = work.batch * heads * sum(queries * keys**2 for queries, keys in work.passes)
    most_tokens = work.batch * max(queries for queries, _ in work.passes)
    mask = work.batch * max(queries * keys for queries, keys in work.passes)
    logits = work.batch if has_cache else keys  # with a cache only those of the last token

    weights = shape.hidden * (shape.projected + shape.inner)
    flops = shape.layers * (2 * tokens * weights + 4 * pairs * shape.head_dim)
    flops += 2 * logits * shape.hidden * shape.vocab
    cache = 2 * shape.layers * keys * shape.kv_heads * shape.head_dim if has_cache else 0
    activations = most_tokens * (4 * shape.hidden + shape.projected + shape.inner)
    memory = HALF * (shape.parameters + cache + activations) + WHOLE * logits * shape.vocab

    per_key = WHOLE * keys * (chosen * heads + heads + shape.kv_heads)
    per_pair = HALF * heads * mask * (chosen + 2) + mask
    over_keys = BeliefConfig.pairs(max_length=work.length)
    over_heads = BeliefConfig.pairs(upward="heads")
    # Configuration, bytes of noise, and operations beside those of softmax.
    methods: dict[str, tuple[MethodConfig, int, int]] = {
        "softmax": (SoftmaxConfig(), 0, 0),
        "BAM": (BamConfig(), mask, 0),
        "BABN per key": (BeliefConfig(), per_key, 0),
        "BABN per pair, keys": (over_keys, per_pair, 6 * chosen * by_keys),
        "BABN per pair, heads": (over_heads, per_pair, 6 * chosen * pairs * heads),
    }
    return [
        Estimate(name, added, memory + WHOLE * added + noise, noise, flops + further)
        for name, (config, noise, further) in methods.items()
        for added in [chain.parameters(config)]
    ]


COLUMNS = ("method", "added", "GiB", "of noise", "TFLOP", "x softmax")
"""Added parameters, memory in total and of the method's noise, and operations."""


def table(found: list[Estimate]) -> list[tuple[str, ...]]:
    """One row for each method, with operations relative to the first."""
    return [
        (
            each.name,
            _counted(each.parameters),
            _short(each.memory / 2**30),
            _short(each.noise / 2**30),
            _short(each.flops / 1e12),
            f"{each.flops / found[0].flops:.2f}",
        )
        for each in found
    ]


def _short(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counted(number: int) -> str:
    """A count in thousands, millions or billions."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
