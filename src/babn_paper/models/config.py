"""What the configurations of models for pairs of texts have in common."""

from typing import Any

from transformers import PreTrainedConfig


class PairConfig(PreTrainedConfig):
    """Sizes and special tokens.

    Args:
        vocab_size: Words.
        embedding_size: Size of a word's vector.
        hidden_size: Size of everything after that.
        fixed_vectors: Whether words' vectors stay as they are in training.
        words_found: Words whose vectors were read from a file.
        dropout: Rate before every layer.
        initializer_range: Standard deviation of random vectors.
        pad_token_id: Number of the padding token.
        cls_token_id: Number of the token that begins a pair; -1 for none.
        sep_token_id: Number of the token that ends a text.
        **kwargs: Further fields that every model of transformers has.
    """

    def __init__(
        self,
        vocab_size: int = 40_000,
        embedding_size: int = 300,
        hidden_size: int = 200,
        fixed_vectors: bool = False,
        words_found: int = 0,
        dropout: float = 0.2,
        initializer_range: float = 0.1,
        pad_token_id: int = 0,
        cls_token_id: int = 2,
        sep_token_id: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.fixed_vectors = fixed_vectors
        self.words_found = words_found
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.pad_token_id = pad_token_id
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id
