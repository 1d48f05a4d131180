"""LSTM encoder-decoder for translation (Deng et al. 2018, https://arxiv.org/abs/1807.03756)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from babn.attention.noise_source import NoiseSource
from babn.errors import DataError
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
from babn_paper.models.variational import (
    Aligned,
    InferenceNetwork,
    drawn,
    log_probabilities,
    lower_bound,
    marginal,
)


class TranslationModel(PreTrainedModel):
    r"""A BiLSTM encoder and an LSTM decoder with attention.

    With source states $h_s$ and decoder states $s_t$, which depend on the words before $t$,

    $$a_t = \mathrm{softmax}_s\left((W_q s_t)^\top W_k h_s\right), \quad
    c_t = \sum_s a_{ts} h_s, \quad
    p(y_t) = \mathrm{softmax}\left(U \tanh(W_c c_t + W_s s_t + b)\right).$$

    With `decoder="input-feeding"`, the decoder is that of the released code of Deng et al.: it
    starts from zeros, its input is the word vector with the context $c_{t-1}$, and scores are
    $v^\top \tanh(W_q s_t + W_k h_s)$. Each word is one call of attention; all of them have the same
    parameters of an attention method, and one variable each. If several samples are drawn for one
    hypothesis, the mean of their contexts is fed.

    With `decoder="parallel"`, the decoder runs over all words at once under teacher forcing, and
    the attention of all words is one call. Queries, and thus the posterior of an attention method,
    depend on the generated words only.

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
        self.bridge = None if config.feeds_inputs else Bridge(config)
        inputs = config.embedding_size + (2 * config.encoder_size if config.feeds_inputs else 0)
        self.decoder = nn.LSTM(inputs, size, config.layers, batch_first=True, dropout=between)
        self.score = (
            nn.Linear(config.attention_size, 1, bias=False) if config.feeds_inputs else None
        )
        self.memory_projection = nn.Linear(2 * config.encoder_size, width, bias=False)
        self.state_projection = nn.Linear(size, width)
        self.cross_attention = None if config.variational else TextAttention(config.feeds_inputs)
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
        counted = _counted(decoder_input_ids, decoder_attention_mask, labels)
        states, sums = self._states(decoder_input_ids, memory, counted)
        if labels is not None and self.inference is not None and self.training:
            return self._bound(self.inference, states, memory, labels)
        if sums is None:
            logits, _ = self._logits(states, memory, counted, noise_source)
        else:
            logits = self.words(sums)
        loss: Any = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
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
        if self.bridge is not None:
            return Memory(key, value, text, self.bridge(ends(states, text)))
        sizes = 2 * [(self.config.layers, self.config.decoder_size)] + [(1, states.shape[-1])]
        start = tuple(states.new_zeros(layers, len(states), size) for layers, size in sizes)
        return Memory(key, value, text, start, states)

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
        """Returns the states at some words, with input feeding at one, and the last outputs."""
        self.decoder.flatten_parameters()
        with full_precision(ids.device):
            vectors = self._vectors(ids)
            outputs, cells, *fed = (each.to(vectors.dtype) for each in state)
            inputs = torch.cat([vectors, *(each.transpose(0, 1) for each in fed)], -1)
            return self.decoder(inputs, (outputs, cells))

    def _states(self, ids: Tensor, memory: Memory, counted: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the states at all words and, with input feeding and softmax, input of `words`."""
        if memory.states is None:
            return self._decode(ids, memory.start)[0], None
        state, found = memory.start, []
        for place, word in enumerate(ids.split(1, 1)):
            states, cells = self._decode(word, state)
            query, own = self._split(self.state_projection(states))
            context, fed = self._context(query, memory, counted[:, place : place + 1])
            state = *cells, fed.transpose(0, 1)
            found.append((states, own + context))
        states, sums = (torch.cat(each, 1) for each in zip(*found, strict=True))
        return states, sums if self.inference is None else None

    def _context(self, query: Tensor, memory: Memory, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the contribution of the context to the last hidden layer, and the context."""
        assert memory.states is not None
        if self.cross_attention is None:
            weights = memory.probabilities(self._log_prior(query, memory))
            return memory.context(weights), weights.to(memory.states.dtype) @ memory.states
        value = torch.cat([memory.value, memory.states.to(memory.value.dtype)], -1)
        scores, seen = self._scores(query, memory.key), memory.text.seen
        # The scores are all in the bias: products of these queries with keys are zero.
        both = self.cross_attention(
            torch.zeros_like(query), memory.key, value, counted, seen, scores
        )
        context, fed = both.split([memory.value.shape[-1], memory.states.shape[-1]], -1)
        return context, fed

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        if self.score is None:
            return query @ key.transpose(-1, -2)
        found: Tensor = self.score(torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)))
        return found.squeeze(-1)

    def _log_prior(self, query: Tensor, memory: Memory) -> Tensor:
        return log_probabilities(self._scores(query, memory.key), memory.text.seen)

    def _next(
        self,
        ids: Tensor,
        memory: Memory,
        state: State,
        samples: int,
        noise_source: NoiseSource | None,
    ) -> TranslationOutput:
        """Computes the next word of each hypothesis."""
        states, cells = self._decode(ids.reshape(-1, 1), state)
        states = states.reshape(*ids.shape, -1).repeat_interleave(samples, 1)
        counted = torch.ones(states.shape[:2], dtype=torch.bool, device=ids.device)
        logits, fed = self._logits(states, memory, counted, noise_source)
        if fed is not None:
            fed = fed.unflatten(1, (-1, samples)).mean(2).flatten(0, 1).unsqueeze(0)
        return TranslationOutput(logits=logits, state=cells if fed is None else (*cells, fed))

    def _logits(
        self, states: Tensor, memory: Memory, counted: Tensor, noise_source: NoiseSource | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns logits and, with input feeding, contexts."""
        query, own = self._split(self.state_projection(states))
        fed = None
        if memory.states is not None:
            context, fed = self._context(query, memory, counted)
        elif self.cross_attention is not None:
            seen = memory.text.seen
            context = self.cross_attention(query, memory.key, memory.value, counted, seen)
        if self.cross_attention is not None:
            return self.words(own + context), fed
        log_p = self._log_prior(query, memory)
        if noise_source is not None:
            return self.words(own + memory.context(drawn(memory, log_p, noise_source))), fed
        if self.config.prediction == "enum":
            return marginal(self.words, own, memory, log_p), fed
        return self.words(own + memory.context(memory.probabilities(log_p))), fed

    def _bound(
        self, inference: InferenceNetwork, states: Tensor, memory: Memory, labels: Tensor
    ) -> TranslationOutput:
        """Returns the negative evidence lower bound, and logits with soft attention."""
        query, own = self._split(self.state_projection(states))
        target = Text(labels.clamp(min=0), labels != IGNORED)
        vectors = self._vectors(memory.text.ids), self._vectors(target.ids)
        log_q = inference(*vectors, memory.text, target)
        log_p = self._log_prior(query, memory)
        return lower_bound(Aligned(self.words, own, memory, labels), log_q, log_p, self.config)


def _counted(ids: Tensor, mask: Tensor | None, labels: Tensor | None) -> Tensor:
    if mask is not None:
        return mask.bool()
    return torch.ones_like(ids, dtype=torch.bool) if labels is None else labels != IGNORED
