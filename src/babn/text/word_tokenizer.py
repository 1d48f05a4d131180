"""A word-level tokenizer, built from texts."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

INPUTS = ["input_ids", "token_type_ids", "attention_mask"]

RARE = 2
"""Words with fewer occurrences are unknown, so that the unknown token is trained too."""


def word_tokenizer(
    texts: Iterable[str],
    most: int | None = None,
    further: Iterable[str] = (),
    marked: bool = True,
) -> PreTrainedTokenizerFast:
    """A tokenizer for texts and pairs of texts, whose vocabulary is the words of `texts`.

    All other words share the unknown token.

    Args:
        texts: Texts from which the vocabulary is taken.
        most: Size of the vocabulary; keeps the most frequent words.
        further: Words that fill the vocabulary up to `most`, in this order.
        marked: Whether special tokens mark the beginning and end of a text.
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
