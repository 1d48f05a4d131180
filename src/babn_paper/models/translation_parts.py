"""Configuration and layers of the translation model."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.utils.generic import ModelOutput

from babn.errors import ConfigError
from babn_paper.models.texts import Text

CHOICES = {
    "decoder": ("parallel", "input-feeding"),
    "attention": ("softmax", "va-enum", "va-sample"),
    "estimator": ("reinforce", "gumbel"),
    "prediction": ("enum", "soft"),
}


class TranslationConfig(PreTrainedConfig):
    """Configuration of the translation model, with one vocabulary for both languages.

    The default sizes are those of Deng et al. (2018, https://arxiv.org/abs/1807.03756).

    Args:
        vocab_size: Size of the vocabulary.
        embedding_size: Size of a word vector.
        encoder_size: Size of each direction of the encoder.
        decoder_size: Size of the decoder, and of the last hidden layer.
        attention_size: Size of queries and keys.
        layers: Number of layers of the encoder, of the decoder and of the inference network.
        dropout: Dropout rate on word vectors, between layers and before the output.
        decoder: `"input-feeding"` for the decoder of Deng et al., or `"parallel"` for one that runs
            over all words of a target at once in training.
        attention: `"softmax"`, which `babn.convert` can replace; or variational attention, trained
            by enumeration of all alignments (`"va-enum"`) or with samples (`"va-sample"`).
        kl_weight: Weight of the KL of variational attention; may be changed in training.
        estimator: Gradient estimator of `"va-sample"`: `"reinforce"`, or `"gumbel"` for
            straight-through Gumbel-softmax.
        baseline: Whether `"reinforce"` subtracts the log-probability under soft attention.
        train_samples: Number of alignments that `"va-sample"` samples per target position.
        gumbel_temperature: Temperature of `"gumbel"`.
        prediction: Prediction with variational attention: the mean of word probabilities over
            alignments (`"enum"`), or word probabilities at the mean of source positions (`"soft"`),
            a faster approximation.
        initializer_range: Weights are initialised uniformly between this and its negative.
        tie_word_embeddings: Whether the output shares its weights with the word vectors; the last
            hidden layer then has their size.
        pad_token_id: Id of the padding token.
        bos_token_id: Id of the begin token.
        eos_token_id: Id of the end token.
        **kwargs: Further fields of `PreTrainedConfig`.
    """

    model_type = "babn-translation"

    vocab_size: int = 14_000
    embedding_size: int = 512
    encoder_size: int = 512
    decoder_size: int = 768
    attention_size: int = 512
    layers: int = 2
    dropout: float = 0.3
    decoder: str = "parallel"
    attention: str = "softmax"
    kl_weight: float = 1.0
    estimator: str = "reinforce"
    baseline: bool = True
    train_samples: int = 1
    gumbel_temperature: float = 0.5
    prediction: str = "enum"
    initializer_range: float = 0.1
    tie_word_embeddings: bool = False
    pad_token_id: int = 0
    bos_token_id: int = 2
    eos_token_id: int = 3

    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Validates the fields."""
        kwargs = {"decoder_start_token_id": self.bos_token_id} | kwargs
        super().__post_init__(**kwargs)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is invalid. Choose one of {list(choices)}."
                )

    @property
    def variational(self) -> bool:
        """Whether alignments are latent variables with an inference network."""
        return self.attention != "softmax"

    @property
    def feeds_inputs(self) -> bool:
        """Whether the decoder takes the context of the word before as a further input."""
        return self.decoder == "input-feeding"

    @property
    def output_size(self) -> int:
        """Size of the last hidden layer."""
        return self.embedding_size if self.tie_word_embeddings else self.decoder_size


IGNORED = -100
"""Label of positions that the loss ignores."""

MEMORY = 2**35
"""Assumed memory of a CPU, in bytes."""

State = tuple[Float[Tensor, "_ row _"], ...]
"""Outputs and cells of the decoder's layers and, with input feeding, the last context."""


def logits_at_once(device: torch.device) -> int:
    """Returns the number of word logits that may be in memory at once: 1/64 of it, in float32.

    Larger chunks make better use of a GPU.
    """
    if device.type != "cuda":
        return MEMORY // 64 // 4
    return int(torch.cuda.get_device_properties(device).total_memory) // 64 // 4


@dataclass(frozen=True)
class Memory:
    """Encoded sources.

    Attributes:
        key: Keys of attention.
        value: Contributions of source positions to the last hidden layer.
        text: The sources with their mask.
        start: Initial state of the decoder.
        states: States of the encoder, for input feeding.
    """

    key: Float[Tensor, "batch source dim"]
    value: Float[Tensor, "batch source size"]
    text: Text
    start: State
    states: Float[Tensor, "batch source width"] | None = None

    def of(self, rows: Int[Tensor, " kept"]) -> "Memory":
        """Selects some sources."""
        text = Text(self.text.ids[rows], self.text.seen[rows])
        start = tuple(each[:, rows] for each in self.start)
        states = None if self.states is None else self.states[rows]
        return Memory(self.key[rows], self.value[rows], text, start, states)

    def probabilities(
        self, log_weights: Float[Tensor, "batch target source"]
    ) -> Float[Tensor, "batch target source"]:
        """Returns probabilities of source positions; 0 at padding."""
        return log_weights.exp().masked_fill(~self.text.seen.unsqueeze(1), 0.0)

    def context(
        self, weights: Float[Tensor, "batch target source"]
    ) -> Float[Tensor, "batch target size"]:
        """Returns the weighted sum of the values."""
        return weights.to(self.value.dtype) @ self.value


@dataclass
class TranslationOutput(ModelOutput):
    """Output of the translation model.

    Attributes:
        loss: Mean over target words of their negative log-probability or, for variational attention
            in training, of the negative evidence lower bound.
        logits: Logits of the next word after each target position, or for each hypothesis.
        state: The decoder's state, if one was given.
        likelihood: Mean expected log-probability, the first term of the bound.
        kl: Mean KL, the second term of the bound, without its weight.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "batch target word"] | None = None
    state: State | None = None
    likelihood: Float[Tensor, ""] | None = None
    kl: Float[Tensor, ""] | None = None


class Bridge(nn.Module):
    """Maps the final states of the encoder to the initial state of the decoder."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.layers = config.layers
        outputs = 2 * config.layers * config.decoder_size
        self.projection = nn.Linear(2 * config.encoder_size, outputs)

    def forward(self, known: Float[Tensor, "batch size"]) -> State:
        """Returns outputs and cells of all layers."""
        each = self.projection(known).unflatten(-1, (2, self.layers, -1)).permute(1, 2, 0, 3)
        return each[0].tanh().contiguous(), each[1].contiguous()


class WordLayer(nn.Module):
    r"""Computes logits of words, $U \tanh(W_c c_t + W_s s_t + b)$, from the argument of tanh."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.output_size, config.vocab_size)

    def forward(self, sums: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch word"]:
        """Returns one logit for each word."""
        return self.output(self.dropout(torch.tanh(sums)))
