"""The sizes on which estimates depend: those of a model, and those of the texts it processes."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from babn.errors import ConfigError
from babn.validation import check_count

MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields of configurations of mixtures of experts."""

LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
PRESETS: dict[str, dict[str, Any]] = {
    "llama-2-7b": {**LLAMA, "intermediate_size": 11008, "vocab_size": 32000},
    "llama-3-8b": {
        **LLAMA,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    },
}
"""Settings of `LlamaConfig` for published models, which need no download."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer with one stack of self-attention layers.

    Attributes:
        hidden: Size of the hidden states.
        heads: Heads of queries.
        kv_heads: Heads of keys and values; fewer than `heads` with grouped queries.
        head_dim: Size of a head.
        layers: Layers.
        intermediate: Inner size of the MLP.
        vocab: Vocabulary size; 0 for a model without a language-model head.
        mlp_matrices: Matrices of the MLP: three if it is gated, as in Llama, otherwise two.
        parameters: All parameters of the model.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    intermediate: int
    vocab: int
    mlp_matrices: int
    parameters: int

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's projections and MLP."""
        projections = 2 * self.head_dim * (self.heads + self.kv_heads)
        return self.hidden * (projections + self.mlp_matrices * self.intermediate)


def preset(name: str) -> Shape:
    """The shape of a published model of `PRESETS`."""
    from transformers import LlamaConfig

    return shape_of(LlamaConfig(**PRESETS[name], architectures=["LlamaForCausalLM"]), name)


def shape_of(config: Any, name: str) -> Shape:
    """The shape of the model that a transformers configuration describes.

    Args:
        config: The configuration.
        name: Name of the model, for messages.
    """
    import torch
    import transformers

    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    _check_covered(config, text, name)
    names = getattr(config, "architectures", None) or [""]
    kind = getattr(transformers, names[0], transformers.AutoModel.from_config)
    with torch.device("meta"):
        model: Any = kind(config)
    hidden, inner = text.hidden_size, getattr(text, "intermediate_size", None)
    inner = inner or getattr(text, "n_inner", None) or 4 * hidden
    heads = text.num_attention_heads
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return Shape(
        hidden=hidden,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        layers=text.num_hidden_layers,
        intermediate=inner,
        vocab=text.vocab_size if head is not None else 0,
        mlp_matrices=_mlp_matrices(model, hidden, inner),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _check_covered(config: Any, text: Any, name: str) -> None:
    kind = type(config).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{name} ({kind}) has an encoder and a decoder; only models with one stack are covered."
        )
    if any(getattr(text, field, None) for field in MIXTURES):
        raise ConfigError(f"{name} ({kind}) is a mixture of experts, which is not covered.")
    if not all(hasattr(text, x) for x in ("hidden_size", "num_attention_heads", "vocab_size")):
        raise ConfigError(f"{name} ({kind}) does not name its sizes, so it is not covered.")


def _mlp_matrices(model: Any, hidden: int, inner: int) -> int:
    """Number of matrices of an MLP between hidden and inner size; two if it is unknown."""
    names = {
        re.sub(r"\d+", "*", name)
        for name, parameter in model.named_parameters()
        if sorted(parameter.shape) == sorted((hidden, inner))
    }
    return len(names) if hidden != inner and names else 2


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch of texts that is processed at once, in chunks, or extended by one token.

    Attributes:
        batch: Number of texts.
        length: Tokens of each text.
        samples: Attention samples, which are batched as further texts.
        queries: Tokens per forward pass, with the earlier ones in a cache; 0 for all.
        cached: Whether one token is computed with all others in the cache.
        train: Whether it is a training step.
        frozen: Whether only the belief parameters are trained.
    """

    batch: int = 1
    length: int = 512
    samples: int = 1
    queries: int = 0
    cached: bool = False
    train: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        """Validates the fields."""
        for name in ("batch", "length", "samples"):
            check_count(name, getattr(self, name))
        if self.queries:
            check_count("queries", self.queries)
        if self.train and (self.queries or self.cached):
            raise ConfigError(
                "train=True is not supported with queries or cached: training reads whole texts."
            )
        if self.frozen and not self.train:
            raise ConfigError(
                "frozen=True needs train=True, since only training freezes parameters."
            )

    @property
    def rows(self) -> int:
        """Texts in a forward pass, including all samples."""
        return self.batch * self.samples

    @property
    def passes(self) -> list[tuple[int, int]]:
        """Queries and keys of a text in each forward pass."""
        if self.cached:
            return [(1, self.length)]
        size = min(self.queries or self.length, self.length)
        ends = [min(start + size, self.length) for start in range(0, self.length, size)]
        return [(end - start, end) for start, end in pairwise([0, *ends])]

    @property
    def one_query(self) -> bool:
        """Whether every forward pass has one token for each text."""
        return self.cached or self.queries == 1 or self.length == 1

    @property
    def has_cache(self) -> bool:
        """Whether keys and values of earlier tokens are kept."""
        return self.cached or self.queries > 0

    @property
    def keys(self) -> int:
        """Keys of the last forward pass."""
        return self.rows * self.length

    @property
    def logits(self) -> int:
        """Tokens for which the head is computed: all, or the last one with a cache."""
        return self.rows if self.has_cache else self.keys

    @property
    def most_queries(self) -> int:
        """Tokens of the largest forward pass."""
        return self.rows * max(queries for queries, _ in self.passes)

    @property
    def most_pairs(self) -> int:
        """Query-key pairs of one head in the largest forward pass."""
        return self.rows * max(queries * keys for queries, keys in self.passes)
