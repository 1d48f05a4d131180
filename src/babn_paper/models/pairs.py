"""Models of pairs of texts: configuration, word vectors, and heads for tasks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput

from babn_paper.models.texts import Text, left_aligned
from babn_paper.models.vectors import WordVectors


class PairConfig(PreTrainedConfig):
    """Configuration of models of pairs of texts.

    Args:
        vocab_size: Size of the vocabulary.
        embedding_size: Size of a word vector.
        hidden_size: Size of the layers.
        fixed_vectors: Whether word vectors are frozen in training.
        words_found: Number of words whose vectors were read from a file.
        dropout: Dropout rate before every layer.
        initializer_range: Standard deviation of random word vectors.
        pad_token_id: Id of the padding token.
        cls_token_id: Id of the token that begins a pair; -1 for none.
        sep_token_id: Id of the token that ends a text.
        **kwargs: Further fields of `PreTrainedConfig`.
    """

    vocab_size: int = 40_000
    embedding_size: int = 300
    hidden_size: int = 200
    fixed_vectors: bool = False
    words_found: int = 0
    dropout: float = 0.2
    initializer_range: float = 0.1
    pad_token_id: int = 0
    cls_token_id: int = 2
    sep_token_id: int = 3


def split(
    input_ids: Int[Tensor, "batch token"],
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    config: PairConfig,
) -> tuple[Text, Text]:
    """Splits rows `[CLS] premise [SEP] hypothesis [SEP]` into premises and hypotheses.

    A separator stays with the text that it ends, so that no text is empty, and words without a
    counterpart can attend to it as to the NULL token of Parikh et al. (2016,
    https://arxiv.org/abs/1606.01933). `[CLS]` is dropped.

    Args:
        input_ids: Tokens, padded on any side.
        attention_mask: Mask of the tokens; by default all but padding tokens.
        token_type_ids: 0 in the premise and 1 in the hypothesis; by default the premise ends at
            the first separator.
        config: Has the ids of the special tokens.
    """
    seen = input_ids.ne(config.pad_token_id) if attention_mask is None else attention_mask.bool()
    if token_type_ids is None:
        ends = input_ids.eq(config.sep_token_id) & seen
        second = ends.cumsum(-1) > ends.long()
    else:
        second = token_type_ids.bool()
    seen = seen & input_ids.ne(config.cls_token_id)
    return left_aligned(input_ids, seen & ~second), left_aligned(input_ids, seen & second)


class WordEmbedding(nn.Embedding):
    """Word vectors, frozen if the configuration says so."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.vocab_size, config.embedding_size)
        self.fixed = config.fixed_vectors
        self.weight.requires_grad_(not self.fixed)

    def forward(self, ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token size"]:
        """Returns the vector of each word."""
        # Loading a checkpoint resets requires_grad.
        return F.embedding(ids, self.weight.detach() if self.fixed else self.weight)


class WordModel(PreTrainedModel):
    """A model with a `network` whose `embedding` of words can be filled from a file."""

    base_model_prefix = "network"
    config: Any
    network: Any

    def get_input_embeddings(self) -> nn.Module:
        """Returns the word vectors."""
        embedding: WordEmbedding = self.network.embedding
        return embedding

    @torch.no_grad()
    def set_vectors(
        self, vectors: WordVectors, vocabulary: Mapping[str, int], seed: int = 0
    ) -> int:
        """Sets word vectors from a file, and returns the number of words found there.

        Args:
            vectors: Vectors of the model's `embedding_size`.
            vocabulary: Id of each word, as returned by a tokenizer's `get_vocab`.
            seed: Seed of the vectors of words that are not in the file.
        """
        filled, found = vectors.fill(vocabulary, seed, self.config.initializer_range)
        self.network.embedding.weight.copy_(filled)
        self.config.words_found = found
        return found


class PairModel(WordModel):
    """A network that computes one vector of two texts, with a linear classifier.

    The network is a module with an `embedding` of words and the number of its `features`, which
    maps two `Text`s to the vector.
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
    """Predicts a class for each pair, or a number if the configuration has one label."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__(config, config.num_labels or 1)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Returns logits, and the loss if labels are given.

        Args:
            input_ids: Tokens of both texts of each pair.
            attention_mask: Mask of the tokens.
            token_type_ids: 0 in the first text and 1 in the second.
            labels: Indices of classes, or numbers to predict.
        """
        logits = self._outputs(input_ids, attention_mask, token_type_ids)
        loss: Any = None if labels is None else self._loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _loss(self, logits: Float[Tensor, "batch label"], labels: Tensor) -> Float[Tensor, ""]:
        if self.config.num_labels == 1:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        return F.cross_entropy(logits, labels)


class PairForMultipleChoice(PairModel):
    """Chooses one of several second texts for a first text, scoring each pair."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__(config, 1)

    def forward(
        self,
        input_ids: Int[Tensor, "batch choice token"],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Int[Tensor, "batch"] | None = None,
    ) -> MultipleChoiceModelOutput:
        """Returns one logit for each choice, and the loss if labels are given.

        Args:
            input_ids: Tokens of the first text with each of the choices.
            attention_mask: Mask of the tokens.
            token_type_ids: 0 in the first text and 1 in the choice.
            labels: Indices of the right choices.
        """
        mask, kinds = (
            None if x is None else x.flatten(0, 1) for x in (attention_mask, token_type_ids)
        )
        logits = self._outputs(input_ids.flatten(0, 1), mask, kinds).view(input_ids.shape[:2])
        loss: Any = None if labels is None else F.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits)
