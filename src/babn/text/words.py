"""Models and tokenizers made on the spot, where there are no pretrained ones."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

INPUTS = ["input_ids", "token_type_ids", "attention_mask"]

RARE = 2
"""Words seen less often than this count as unknown, so that the unknown word is trained as well."""

ALBERT_BASE = {
    "vocab_size": 30_000,
    "embedding_size": 128,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""The sizes of ALBERT-base."""


def small_sizes(vocabulary: int, length: int) -> dict[str, Any]:
    """Sizes of an ALBERT of two layers, which share their weights."""
    return {
        "vocab_size": vocabulary,
        "embedding_size": 32,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": length,
    }


def word_tokenizer(
    texts: Iterable[str],
    most: int | None = None,
    further: Iterable[str] = (),
    marked: bool = True,
) -> PreTrainedTokenizerFast:
    """A tokenizer for texts and pairs of them, whose vocabulary is the words of `texts`.

    All other words share one token.

    Args:
        texts: From which words are taken.
        most: Words in the vocabulary; the most frequent ones, if there are more.
        further: Words that fill it up to `most`, the first ones first.
        marked: Whether special tokens mark where a text begins and ends.
    """
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    counts = Counter(
        word
        for text in texts
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    frequent = (
        word for word in sorted(counts, key=lambda w: (-counts[w], w)) if counts[word] >= RARE
    )
    chosen = islice(dict.fromkeys(chain(frequent, further)), most)
    words = [*SPECIAL.values(), *sorted({*chosen} - {*SPECIAL.values()})]
    index = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(index, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    if marked:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, index[name]) for name in ("[CLS]", "[SEP]")],
        )
    names = INPUTS if marked else [name for name in INPUTS if name != "token_type_ids"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **SPECIAL)
