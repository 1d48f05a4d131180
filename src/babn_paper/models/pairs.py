"""What models for pairs of texts have in common: words' vectors, and the heads of tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput

from babn_paper.models.config import PairConfig
from babn_paper.models.texts import split
from babn_paper.models.vectors import WordVectors


class WordEmbedding(nn.Embedding):
    """Words' vectors, which training leaves alone if the configuration says so."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.vocab_size, config.embedding_size)
        self.fixed = config.fixed_vectors
        self.weight.requires_grad_(not self.fixed)

    def forward(self, ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token size"]:
        """One vector for each word."""
        # Loading makes a trainable parameter of everything.
        return F.embedding(ids, self.weight.detach() if self.fixed else self.weight)


class WordModel(PreTrainedModel):
    """A model whose `network` has an `embedding` of words that a file may fill."""

    base_model_prefix = "network"
    config: Any
    network: Any

    def get_input_embeddings(self) -> nn.Module:
        """The words' vectors."""
        embedding: WordEmbedding = self.network.embedding
        return embedding

    @torch.no_grad()
    def set_vectors(
        self, vectors: WordVectors, vocabulary: Mapping[str, int], seed: int = 0
    ) -> int:
        """Gives words the vectors of a file, and returns how many were found there.

        Args:
            vectors: Of the model's `embedding_size`.
            vocabulary: The number of each word, as a tokenizer's `get_vocab` gives it.
            seed: Decides the vectors of words that are not in the file.
        """
        filled, found = vectors.fill(vocabulary, seed, self.config.initializer_range)
        self.network.embedding.weight.copy_(filled)
        self.config.words_found = found
        return found


class PairModel(WordModel):
    """A network that makes one vector of two texts, and a linear layer on top of it.

    A network is a module made from the configuration, with an `embedding` of words and the number
    of its `features`, which maps two `Text`s to the vector.
    """

    config: PairConfig
    network_class: ClassVar[Any]

    def __init__(self, config: PairConfig, outputs: int) -> None:
        super().__init__(config)
        self.network = self.network_class(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(self.network.features, outputs)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, nn.Linear | nn.LSTM):
            module.reset_parameters()

    def _outputs(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Any:
        premise, hypothesis = split(input_ids, attention_mask, token_type_ids, self.config)
        return self.classifier(self.dropout(self.network(premise, hypothesis)))


class PairForSequenceClassification(PairModel):
    """A class for each pair, or a number if the configuration has one label."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__(config, config.num_labels or 1)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits, and the loss if labels are given.

        Args:
            input_ids: Both texts of each pair, as tokens.
            attention_mask: Where there are tokens.
            token_type_ids: 0 in the first text and 1 in the second.
            labels: Number of the class, or the number.
        """
        logits = self._outputs(input_ids, attention_mask, token_type_ids)
        loss: Any = None if labels is None else self._loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _loss(self, logits: Float[Tensor, "batch label"], labels: Tensor) -> Float[Tensor, ""]:
        if self.config.num_labels == 1:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        return F.cross_entropy(logits, labels)


class PairForMultipleChoice(PairModel):
    """One of several second texts for a first text, each pair scored by the same network."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__(config, 1)

    def forward(
        self,
        input_ids: Int[Tensor, "batch choice token"],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Int[Tensor, "batch"] | None = None,
    ) -> MultipleChoiceModelOutput:
        """One logit for each choice, and the loss if labels are given.

        Args:
            input_ids: The first text with each of the choices, as tokens.
            attention_mask: Where there are tokens.
            token_type_ids: 0 in the first text and 1 in the choice.
            labels: Number of the right choice.
        """
        mask, kinds = (
            None if x is None else x.flatten(0, 1) for x in (attention_mask, token_type_ids)
        )
        logits = self._outputs(input_ids.flatten(0, 1), mask, kinds).view(input_ids.shape[:2])
        loss: Any = None if labels is None else F.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits)
