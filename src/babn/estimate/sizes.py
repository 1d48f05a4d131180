"""The sizes on which estimates depend: sizes of the model, and of the texts that it processes."""

import re
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import nn

from babn.errors import ConfigError
from babn.validation import check_count

MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer with one stack of self-attention layers.

    Attributes:
        name: Name of the model.
        hidden: Size of the hidden states.
        heads: Heads of queries.
        kv_heads: Heads of keys and values; fewer than `heads` with grouped queries.
        head_dim: Size of a head.
        layers: Layers.
        intermediate: Inner size of the MLP.
        vocab: Vocabulary size; 0 for a model without a language-model head.
        mlp_matrices: Matrices of the MLP: three if it is gated, as in Llama, otherwise two.
        counted: Number of parameters of an actual model, if there is one.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    intermediate: int
    vocab: int
    mlp_matrices: int = 3
    counted: int | None = None

    def __post_init__(self) -> None:
        """Validates the fields."""
        for name in ("hidden", "heads", "kv_heads", "head_dim", "layers", "intermediate"):
            check_count(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads={self.kv_heads} is not possible with heads={self.heads}. Give a divisor."
            )

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's projections to queries, keys, values and back."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp_weights(self) -> int:
        """Weights of one layer's MLP."""
        return self.mlp_matrices * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Weights of the language-model head."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All parameters: as counted, or as in Llama, with norms and untied embeddings."""
        if self.counted is not None:
            return self.counted
        layer = self.attention_weights + self.mlp_weights + 2 * self.hidden
        return self.layers * layer + 2 * self.head_weights + self.hidden


_LLAMA: dict[str, int] = {"hidden": 4096, "heads": 32, "head_dim": 128, "layers": 32}
_SHAPES: dict[str, dict[str, int]] = {
    "llama-2-7b": {**_LLAMA, "kv_heads": 32, "intermediate": 11008, "vocab": 32000},
    "llama-3-8b": {**_LLAMA, "kv_heads": 8, "intermediate": 14336, "vocab": 128256},
}
PRESETS = {name: Shape(name=name, **sizes) for name, sizes in _SHAPES.items()}
"""Published shapes, which need no download."""


def shape_of(config: Any, name: str) -> Shape:
    """The shape of a transformers configuration.

    Args:
        config: The configuration.
        name: Name of the model, for messages.
    """
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
        name=name,
        hidden=hidden,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        layers=text.num_hidden_layers,
        intermediate=inner,
        vocab=text.vocab_size if head is not None else 0,
        mlp_matrices=_mlp_matrices(model, hidden, inner),
        counted=sum(parameter.numel() for parameter in model.parameters()),
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
        raise ConfigError(f"{name} ({kind}) does not name its sizes. Give them as --hidden ...")


def _mlp_matrices(model: nn.Module, hidden: int, inner: int) -> int:
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
                "train=True is not possible with queries or cached: training reads whole texts."
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
    def sizes(self) -> list[tuple[int, int]]:
        """Queries and keys of each forward pass."""
        if self.cached:
            return [(1, self.length)]
        size = min(self.queries or self.length, self.length)
        ends = [min((i + 1) * size, self.length) for i in range(ceil(self.length / size))]
        starts = [0, *ends[:-1]]
        return [(end - start, end) for start, end in zip(starts, ends, strict=True)]

    @property
    def tokens(self) -> int:
        """Number of tokens in all forward passes."""
        return self.rows * sum(queries for queries, _ in self.sizes)

    @property
    def logits(self) -> int:
        """Tokens for which the head is computed: all, or the last one with a cache."""
        return self.rows if self.queries or self.cached else self.tokens

    @property
    def pairs(self) -> int:
        """Query-key pairs of one head in all forward passes, including masked ones."""
        return self.rows * sum(queries * keys for queries, keys in self.sizes)

    @property
    def pairs_by_keys(self) -> int:
        """Sum over all pairs of the number of keys in their forward pass."""
        return self.rows * sum(queries * keys**2 for queries, keys in self.sizes)

    @property
    def keys(self) -> int:
        """Keys of all forward passes."""
        return self.rows * sum(keys for _, keys in self.sizes)

    @property
    def pairs_at_once(self) -> int:
        """Pairs of the largest forward pass."""
        return self.rows * max(queries * keys for queries, keys in self.sizes)

    @property
    def queries_at_once(self) -> int:
        """Tokens of the largest forward pass."""
        return self.rows * max(queries for queries, _ in self.sizes)
