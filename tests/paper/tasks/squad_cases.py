"""Tokenizers and questions for tests of question answering."""

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from babn.text import SPECIAL, word_tokenizer
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.squad_files import Answer, Question
from babn_paper.tasks.task import Part

ODD_TEXTS = (
    'Café "Zoë" opened in 1999 – 東京タワー is 333\u00a0m high; naïve fans 👩‍🚀 paid €5.50.',
    "A line\nbreak,  two  spaces and\ta tab. The end (of it).",
)


def builtin(part: str, version: str = "1.1") -> Part[Question]:
    return find_task(f"squad{version}").read("builtin", part)


@cache
def texts() -> list[str]:
    task = find_task("squad2.0")
    return [*task.texts(builtin("train").examples), *ODD_TEXTS]


def words() -> Any:
    """Whole words, with a template for pairs."""
    return word_tokenizer(texts())


@cache
def pieces() -> Any:
    """Word pieces, as BERT has them."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL.values())
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    made.train_from_iterator(texts(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **SPECIAL,
    )


@cache
def byte_pairs() -> Any:
    """Byte-level pairs without segments, as RoBERTa has them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts(), trainer)
    ends = [(name, made.token_to_id(name)) for name in ("</s>", "<s>")]
    made.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask"],
    )


@cache
def spaced() -> Any:
    """Pieces that take the space before them along, as ALBERT has them."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL.values()),
        unk_token="[UNK]",
        show_progress=False,
    )
    made.train_from_iterator(texts(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "words": words,
    "pieces": pieces,
    "byte pairs": byte_pairs,
    "spaced": spaced,
}


def ask(context: str, *answers: str, text: str = "What is it?", name: str = "q") -> Question:
    """A question whose answers stand in the context."""
    return Question(name, text, context, tuple(Answer(a, context.index(a)) for a in answers))
