"""A small encoder and its tokenizer, made on the spot where no pretrained model is installed."""

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from babn.demo.batches import MAX_TOKENS

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

RARE = 2
"""Words seen less often than this count as unknown, so that the unknown word is trained as well."""


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


def word_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is the words of `texts`."""
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts = Counter(
        word
        for text in texts
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    words = [*SPECIAL.values(), *sorted(word for word, n in counts.items() if n >= RARE)]
    index = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(index, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, index[name]) for name in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
