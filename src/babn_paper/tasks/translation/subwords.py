"""Pieces of words: byte-pair encoding (Sennrich et al. 2016), one vocabulary for both languages."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
"""In the order of their numbers, which the translation model takes for granted."""

SPACE = "▁"
"""Begins a word, so that pieces can be put together again to the text as it was."""

WORD = Regex(rf"{SPACE}?\p{{L}}[\p{{L}}\p{{M}}]*|{SPACE}?\p{{N}}+|{SPACE}?[^{SPACE}\p{{L}}\p{{N}}]")
"""What no piece reaches beyond: letters, digits, or one other sign, with the space before."""

ALPHABET = 400
"""Signs in the vocabulary; rarer ones count as unknown, so that the unknown sign is trained."""


def learn_subwords(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose pieces are the most frequent ones of some texts.

    Args:
        texts: Both languages' sentences.
        size: Pieces in the vocabulary, with special tokens; fewer if the texts have no more.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL["unk_token"]))
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
    """The tokenizer of a file that the backend of `learn_subwords` has saved."""
    return _wrapped(Tokenizer.from_file(str(path)))


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # A sentence that mentions [EOS] does not end there.
        split_special_tokens=True,
        **SPECIAL,
    )
