"""A small encoder, made on the spot where no pretrained model is installed."""

from transformers import BertConfig, BertModel

from babn.demo.batches import MAX_TOKENS


def small_encoder(vocabulary: int) -> BertModel:
    """A BERT of two layers with random weights."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=MAX_TOKENS,
    )
    return BertModel(config, add_pooling_layer=False)
