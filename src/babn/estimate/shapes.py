"""The shape of a model: sizes and number of layers."""

import re
from dataclasses import dataclass
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
"""Published shapes, available offline."""


def shape_of(config: Any, name: str) -> Shape:
    """The shape of a transformers configuration.

    Args:
        config: The configuration.
        name: Name of the model, for messages.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    _check_covered(config, text, name)
    model = _weightless(config)
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


def _weightless(config: Any) -> Any:
    """The model of a configuration on the meta device."""
    import transformers

    names = getattr(config, "architectures", None) or [""]
    kind = getattr(transformers, names[0], None)
    with torch.device("meta"):
        return kind(config) if kind else transformers.AutoModel.from_config(config)


def _mlp_matrices(model: nn.Module, hidden: int, inner: int) -> int:
    """Number of matrices of an MLP between hidden and inner size; two if it is unknown."""
    names = {
        re.sub(r"\d+", "*", name)
        for name, parameter in model.named_parameters()
        if sorted(parameter.shape) == sorted((hidden, inner))
    }
    return len(names) if hidden != inner and names else 2
