"""Configuration of MCAN."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

from babn.errors import ConfigError

ANSWERS = 3129
"""Number of answers of VQA-v2 that occur at least 9 times."""


class McanConfig(PreTrainedConfig):
    """Configuration of MCAN, by default with the sizes of the paper and features from a detector.

    Args:
        vocab_size: Size of the vocabulary.
        embedding_size: Size of a word vector.
        fixed_vectors: Whether word vectors are frozen in training.
        words_found: Number of words whose vectors were read from a file.
        hidden_size: Size of words and regions in all layers.
        num_hidden_layers: Number of layers for the question, and for the image.
        num_attention_heads: Number of attention heads.
        intermediate_size: Inner size of the feed-forward layers.
        fused_size: Size of the fused vector of question and image.
        region_size: Size of the features of an image region.
        stem_channels: Channels of the convolutions that divide raw images into regions, each of
            which halves height and width; empty if the model gets features.
        image_size: Height and width of raw images.
        dropout: Dropout rate of all layers and of attention weights.
        initializer_range: Standard deviation of random word vectors.
        pad_token_id: Id of the padding token.
        problem_type: Answers have independent probabilities, by a sigmoid.
        **kwargs: Further fields of `PreTrainedConfig`.
    """

    model_type = "babn-mcan"

    def __init__(
        self,
        vocab_size: int = 20_000,
        embedding_size: int = 300,
        fixed_vectors: bool = False,
        words_found: int = 0,
        hidden_size: int = 512,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 8,
        intermediate_size: int = 2048,
        fused_size: int = 1024,
        region_size: int = 2048,
        stem_channels: Sequence[int] = (),
        image_size: Sequence[int] = (),
        dropout: float = 0.1,
        initializer_range: float = 1.0,
        pad_token_id: int = 0,
        problem_type: Any = "multi_label_classification",
        **kwargs: Any,
    ) -> None:
        if "id2label" not in kwargs:
            kwargs.setdefault("num_labels", ANSWERS)
        super().__init__(problem_type=problem_type, **kwargs)
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.fixed_vectors = fixed_vectors
        self.words_found = words_found
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.fused_size = fused_size
        self.stem_channels = list(stem_channels)
        self.image_size = list(image_size)
        self.region_size = self.stem_channels[-1] if self.stem_channels else region_size
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.pad_token_id = pad_token_id
        self._check()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the regions that the convolutions make of an image."""
        height, width = self.image_size
        for _ in self.stem_channels:
            height, width = -(-height // 2), -(-width // 2)
        return height, width

    def _check(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} does not divide "
                f"hidden_size={self.hidden_size}. Give a divisor."
            )
        if bool(self.stem_channels) != bool(self.image_size):
            raise ConfigError(
                f"stem_channels={self.stem_channels} and image_size={self.image_size} must both be "
                "given or both be empty. Give both for raw images, or neither for features."
            )
