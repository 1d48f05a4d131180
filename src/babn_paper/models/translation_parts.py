"""Parts of the translation model."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from babn_paper.models.texts import Text
from babn_paper.models.translation_config import TranslationConfig

IGNORED = -100
"""The label of positions that do not count."""

MEMORY = 2**35
"""Bytes that a CPU is taken to have."""

State = tuple[Float[Tensor, "layer row decoder"], Float[Tensor, "layer row decoder"]]
"""Outputs and cells of the decoder's layers after some words."""


def logits_at_once(device: torch.device) -> int:
    """How many logits of words may be alive together: a 64th of the memory, in float32.

    The more there are, the fewer and larger are the steps that a GPU is given.
    """
    if device.type != "cuda":
        return MEMORY // 64 // 4
    return int(torch.cuda.get_device_properties(device).total_memory) // 64 // 4


@dataclass(frozen=True)
class Memory:
    """All that the decoder needs of the sources.

    Attributes:
        key: What decoder states are compared with.
        value: What source positions contribute to the layer before the output.
        text: The sources, and where they have positions.
        start: The decoder's state before the first word.
    """

    key: Float[Tensor, "batch source dim"]
    value: Float[Tensor, "batch source size"]
    text: Text
    start: State

    def of(self, rows: Int[Tensor, " kept"]) -> "Memory":
        """That of some sources."""
        outputs, cells = self.start
        text = Text(self.text.ids[rows], self.text.seen[rows])
        return Memory(self.key[rows], self.value[rows], text, (outputs[:, rows], cells[:, rows]))

    def probabilities(
        self, log_weights: Float[Tensor, "batch target source"]
    ) -> Float[Tensor, "batch target source"]:
        """Probabilities of source positions; zero at padding."""
        return log_weights.exp().masked_fill(~self.text.seen.unsqueeze(1), 0.0)

    def context(
        self, weights: Float[Tensor, "batch target source"]
    ) -> Float[Tensor, "batch target size"]:
        """What source positions contribute together, each with its weight."""
        return weights.to(self.value.dtype) @ self.value


@dataclass
class TranslationOutput(ModelOutput):
    """What the translation model says of a batch.

    Attributes:
        loss: Mean over target words: of their negative log-probability or, for variational
            attention in training, of the negative evidence lower bound.
        logits: Of the next word after each target position, or for each hypothesis.
        state: The decoder's state, where one was given.
        likelihood: Mean of the bound's first term, the expected log-probability.
        kl: Mean of the bound's second term, before its weight.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "batch target word"] | None = None
    state: State | None = None
    likelihood: Float[Tensor, ""] | None = None
    kl: Float[Tensor, ""] | None = None


class Bridge(nn.Module):
    """The decoder's first state from what the encoder knows at its ends."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.layers = config.layers
        outputs = 2 * config.layers * config.decoder_size
        self.projection = nn.Linear(2 * config.encoder_size, outputs)

    def forward(self, known: Float[Tensor, "batch size"]) -> State:
        """Outputs and cells of all layers."""
        each = self.projection(known).unflatten(-1, (2, self.layers, -1)).permute(1, 2, 0, 3)
        return each[0].tanh().contiguous(), each[1].contiguous()


class WordLayer(nn.Module):
    r"""Logits of words, $U \tanh(W_c c_t + W_s s_t + b)$, from the sum inside the brackets."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.output_size, config.vocab_size)

    def forward(self, sums: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch word"]:
        """One logit for each word."""
        return self.output(self.dropout(torch.tanh(sums)))
