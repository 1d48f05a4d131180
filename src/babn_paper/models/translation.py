"""LSTM encoder-decoder for translation (Deng et al. 2018, https://arxiv.org/abs/1807.03756)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from babn.attention.noise_source import NoiseSource
from babn.errors import DataError
from babn_paper.models.alignments import Aligned, drawn, marginal
from babn_paper.models.texts import BiLstm, Text, TextAttention, ends, full_precision, left_aligned
from babn_paper.models.translation_parts import (
    IGNORED,
    Bridge,
    Memory,
    State,
    TranslationConfig,
    TranslationOutput,
    WordLayer,
)
from babn_paper.models.variational import InferenceNetwork, log_attention, lower_bound


class TranslationModel(PreTrainedModel):
    r"""A BiLSTM encoder and an LSTM decoder with attention.

    With source states $h_s$ and decoder states $s_t$, which depend on the words before $t$,

    $$a_t = \mathrm{softmax}_s\left((W_q s_t)^\top W_k h_s\right), \quad
    c_t = \sum_s a_{ts} h_s, \quad
    p(y_t) = \mathrm{softmax}\left(U \tanh(W_c c_t + W_s s_t + b)\right).$$

    This differs from the released code of Deng et al. in two points: that code feeds contexts back
    into the decoder and computes scores by a layer with tanh. Without these, the decoder runs over
    all words at once under teacher forcing, and the attention of all words is one call that
    `babn.convert` can replace. Queries, and thus the posterior of an attention method, depend on
    the generated words only.

    $W_k$ and $W_c$ are one projection of the memory, and $W_q$ and $W_s$ one of the states. Values
    are $W_c h_s$, which is equivalent and computed once per source.

    With variational attention, $a_t$ is the prior $p(z_t \mid x, y_{<t})$ of a latent alignment;
    see `babn_paper.models.variational`.
    """

    config_class = TranslationConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    config: TranslationConfig
    _tied_weights_keys = {"words.output.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__(config)
        size, width = config.decoder_size, config.attention_size + config.output_size
        between = config.dropout if config.layers > 1 else 0.0
        encoder = config.embedding_size, config.encoder_size, config.layers, config.dropout
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = BiLstm(*encoder)
        self.bridge = Bridge(config)
        self.decoder = nn.LSTM(
            config.embedding_size, size, config.layers, batch_first=True, dropout=between
        )
        self.memory_projection = nn.Linear(2 * config.encoder_size, width, bias=False)
        self.state_projection = nn.Linear(size, width)
        self.cross_attention = None if config.variational else TextAttention()
        self.inference = InferenceNetwork(config) if config.variational else None
        self.words = WordLayer(config)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "batch target"] | None = None,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        decoder_attention_mask: Tensor | None = None,
        memory: Memory | None = None,
        state: State | None = None,
        samples: int = 1,
        noise_source: NoiseSource | None = None,
    ) -> TranslationOutput:
        """Returns logits of the next words, and the loss if labels are given.

        Args:
            input_ids: Sources, padded on any side.
            attention_mask: Mask of the tokens; by default all but padding tokens.
            labels: Targets with their end tokens, padded on the right with -100.
            decoder_input_ids: Targets with their begin tokens; by default made from labels.
            decoder_attention_mask: Mask of the targets; by default that of the labels.
            memory: Result of `encode`, instead of sources.
            state: The decoder's state for each hypothesis of each source. `decoder_input_ids` are
                then their last words, not sequences.
            samples: Number of attention samples per hypothesis, with consecutive logits.
            noise_source: Makes variational attention sample one alignment per query, regardless of
                `prediction`; converted models get theirs from `babn.sampling`.
        """
        if memory is None:
            memory = self.encode(input_ids, attention_mask)
        if decoder_input_ids is None:
            decoder_input_ids = self.shifted(labels)
        if state is not None:
            return self._next(decoder_input_ids, memory, state, samples, noise_source)
        states, _ = self._decode(decoder_input_ids, memory.start)
        if labels is not None and self.inference is not None and self.training:
            return self._bound(self.inference, states, memory, labels)
        counted = _counted(decoder_input_ids, decoder_attention_mask, labels)
        logits = self._logits(states, memory, counted, noise_source)
        loss: Any = None if labels is None else _cross_entropy(logits, labels)
        return TranslationOutput(loss=loss, logits=logits)

    def encode(self, input_ids: Tensor | None, attention_mask: Tensor | None = None) -> Memory:
        """Encodes sources for the decoder.

        Args:
            input_ids: Sources, padded on any side.
            attention_mask: Mask of the tokens; by default all but padding tokens.
        """
        if input_ids is None:
            raise DataError("input_ids=None and memory=None: there is no source. Give one of them.")
        seen = input_ids != self.config.pad_token_id
        text = left_aligned(input_ids, seen if attention_mask is None else attention_mask.bool())
        states = self.encoder(self._vectors(text.ids), text)
        key, value = self._split(self.memory_projection(states))
        return Memory(key, value, text, self.bridge(ends(states, text)))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding | nn.Linear | nn.LSTM):
            limit = self.config.initializer_range
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -limit, limit)

    def get_input_embeddings(self) -> nn.Module:
        """Returns the word vectors."""
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        """Returns the last layer."""
        return self.words.output

    def _vectors(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids))

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Splits a projection into keys or queries, and contributions to the last hidden layer."""
        compared, contributed = projected.split(
            [self.config.attention_size, self.config.output_size], -1
        )
        return compared, contributed

    def shifted(self, labels: Tensor | None) -> Tensor:
        """Returns the decoder's inputs: targets with the begin token and without the last token."""
        if labels is None:
            raise DataError("labels=None and decoder_input_ids=None: there is no target. Give one.")
        before = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.config.pad_token_id)
        return F.pad(before, (1, 0), value=self.config.bos_token_id)

    def _decode(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        self.decoder.flatten_parameters()
        with full_precision(ids.device):
            vectors = self._vectors(ids)
            outputs, cells = (each.to(vectors.dtype) for each in state)
            return self.decoder(vectors, (outputs, cells))

    def _next(
        self,
        ids: Tensor,
        memory: Memory,
        state: State,
        samples: int,
        noise_source: NoiseSource | None,
    ) -> TranslationOutput:
        """Computes the next word of each hypothesis."""
        states, state = self._decode(ids.reshape(-1, 1), state)
        states = states.reshape(*ids.shape, -1).repeat_interleave(samples, 1)
        counted = torch.ones(states.shape[:2], dtype=torch.bool, device=ids.device)
        logits = self._logits(states, memory, counted, noise_source)
        return TranslationOutput(logits=logits, state=state)

    def _logits(
        self, states: Tensor, memory: Memory, counted: Tensor, noise_source: NoiseSource | None
    ) -> Tensor:
        query, own = self._split(self.state_projection(states))
        if self.cross_attention is not None:
            seen = memory.text.seen
            context = self.cross_attention(query, memory.key, memory.value, counted, seen)
            return self.words(own + context)
        log_p = log_attention(query, memory.key, memory.text.seen)
        if noise_source is not None:
            return self.words(own + memory.context(drawn(memory, log_p, noise_source)))
        if self.config.prediction == "enum":
            return marginal(self.words, own, memory, log_p)
        return self.words(own + memory.context(memory.probabilities(log_p)))

    def _bound(
        self, inference: InferenceNetwork, states: Tensor, memory: Memory, labels: Tensor
    ) -> TranslationOutput:
        """Returns the negative evidence lower bound, and logits with soft attention."""
        query, own = self._split(self.state_projection(states))
        target = Text(labels.clamp(min=0), labels != IGNORED)
        vectors = self._vectors(memory.text.ids), self._vectors(target.ids)
        log_q = inference(*vectors, memory.text, target)
        log_p = log_attention(query, memory.key, memory.text.seen)
        return lower_bound(Aligned(self.words, own, memory, labels), log_q, log_p, self.config)


def _counted(ids: Tensor, mask: Tensor | None, labels: Tensor | None) -> Tensor:
    if mask is not None:
        return mask.bool()
    return torch.ones_like(ids, dtype=torch.bool) if labels is None else labels != IGNORED


def _cross_entropy(logits: Tensor, labels: Tensor) -> Float[Tensor, ""]:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
