"""Preparation, tokenization and encoding of sentences.

Subwords are those of byte-pair encoding (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909),
with one vocabulary for both languages.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from babn.errors import DataError
from babn_paper.models.translation_parts import IGNORED
from babn_paper.tasks.encoded import Encoded, Ragged
from babn_paper.tasks.task import Part, Tokenizer
from babn_paper.tasks.text_task import encode_texts
from babn_paper.tasks.translation.pairs import SentencePair

Preparation = Literal["as-is", "tokenized", "lowercase"]
"""Unchanged; words and punctuation separated, as by Moses; or in addition lower-cased."""

TOKEN = re.compile(r"\d+(?:[.,]\d+)*|['’]\w+|\w+(?:-\w+)*|[^\w\s]")

JOINT = re.compile(r"@@( |$)")
"""Marker of subword-nmt within a split word."""

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
"""In the order of their ids, on which the translation model relies."""

SPACE = "▁"
"""Marks the beginning of a word, so that decoding restores the text."""

WORD = Regex(rf"{SPACE}?\p{{L}}[\p{{L}}\p{{M}}]*|{SPACE}?\p{{N}}+|{SPACE}?[^{SPACE}\p{{L}}\p{{N}}]")
"""Limits of subwords: letters, digits, or one other character, with the preceding space."""

ALPHABET = 400
"""Number of characters in the vocabulary; rarer ones train the unknown token."""

UNLIMITED = 10**6
"""More subwords than any sentence has."""


def prepared(text: str, preparation: Preparation) -> str:
    """Normalises white space, and separates or lower-cases words as requested.

    Args:
        text: The sentence.
        preparation: The preparation; `"as-is"` suits text that is already tokenized.
    """
    if preparation == "as-is":
        return " ".join(text.split())
    words = " ".join(TOKEN.findall(text))
    return words.lower() if preparation == "lowercase" else words


def without_joints(text: str) -> str:
    """Joins the words that subword-nmt has split."""
    return JOINT.sub("", text)


def learn_subwords(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-pair tokenizer.

    Args:
        texts: Sentences of both languages.
        size: Maximum size of the vocabulary, with special tokens.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(WORD, "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            limit_alphabet=ALPHABET,
            special_tokens=list(SPECIAL.values()),
            show_progress=False,
        ),
    )
    end = SPECIAL["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return _wrapped(tokenizer)


def read_subwords(path: Path) -> PreTrainedTokenizerFast:
    """Reads the tokenizer that the backend of `learn_subwords` has saved."""
    return _wrapped(tokenizers.Tokenizer.from_file(str(path)))


def _wrapped(tokenizer: tokenizers.Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # The text [EOS] in a sentence is not the end of the sentence.
        split_special_tokens=True,
        **SPECIAL,
    )


def encode_sources(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Encodes sentences with their end tokens, truncated to a maximum length."""
    found = encode_texts([(text,) for text in texts], tokenizer, max_length)
    return Encoded({"input_ids": found["input_ids"]}, {})


def encode_pairs(part: Part[SentencePair], tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Encodes sources and targets, leaving out pairs with a sentence that is too long.

    If both sides were truncated, they might no longer be translations of each other.
    """
    sides = [
        encode_texts([(text,) for text in texts], tokenizer, UNLIMITED)["input_ids"]
        for texts in zip(*((each.source, each.target) for each in part.examples), strict=True)
    ]
    short = (sides[0].lengths <= max_length) & (sides[1].lengths <= max_length)
    if not short.any():
        raise DataError(
            f"{part.origin}: no pair has at most {max_length} subwords on both sides. Raise "
            "max_length."
        )
    source, target = (_chosen(side, short.nonzero().flatten().tolist()) for side in sides)
    labels = Ragged(target.values, target.offsets, IGNORED)
    return Encoded({"input_ids": source, "labels": labels}, {})


def _chosen(rows: Ragged, chosen: Sequence[int]) -> Ragged:
    if len(chosen) == len(rows.lengths):
        return rows
    values, ends = rows.values.tolist(), rows.offsets.tolist()
    return Ragged.of([values[ends[i] : ends[i + 1]] for i in chosen], rows.padding)
