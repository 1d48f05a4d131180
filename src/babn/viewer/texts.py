"""Loads models, converts texts to model inputs, and token ids to words for display."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from babn.conversion.example_inputs import is_multiple_choice
from babn.conversion.state import belief_states
from babn.devices import default_device, device_of
from babn.errors import BabnError, FormatError, import_extra
from babn.model_folders import find_folder
from babn.persistence import MODEL_FILES, load
from babn.prediction.sampling import evaluating, posterior_mean
from babn.text import quiet

Tokenizer = Any
"""A tokenizer of transformers, which has no common type."""

BEFORE = "a"
"""A word before a token; decoding both shows whether the tokenizer joins them."""

Text = str | tuple[str, str]
"""A text, or a pair of texts, such as a premise and a hypothesis."""

MOST_TOKENS = 1024
"""Maximum number of tokens of a text."""

WRITTEN = 24
"""Tokens that an encoder-decoder generates if no text is given for its decoder."""

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
"""A folder with a tokenizer has at least one of these files."""

SPECIAL, JOINED = 1, 2
"""Flags of words."""


class TextError(BabnError, ValueError):
    """A text cannot be shown."""


class Word(NamedTuple):
    """One token.

    Attributes:
        text: The displayed text.
        flags: `SPECIAL` for a special token such as `[CLS]`, `JOINED` if it continues the word
            before it.
    """

    text: str
    flags: int = 0


@dataclass(frozen=True)
class Example:
    """One text for a model.

    Attributes:
        texts: The text, or both texts of a pair, as the tokenizer gets them.
        batch: The model's arguments, a batch of one.
        words: The input tokens of the model, or of its encoder.
        output: The input tokens of the decoder of an encoder-decoder.
    """

    texts: list[str]
    batch: dict[str, Tensor]
    words: list[Word]
    output: list[Word]


def open_model(folder: str | Path) -> tuple[Any, Tokenizer]:
    """Loads a converted model in single precision and its tokenizer.

    Args:
        folder: A folder that `save_pretrained` wrote, the folder of a run, whose model is in its
            subfolder `model`, or a name on the hub.
    """
    transformers = import_extra("transformers", "The viewer needs transformers", "viewer")
    folder = find_folder(folder, MODEL_FILES)
    if (folder / "model" / "config.json").exists():
        folder = folder / "model"
    with quiet():
        model = load(folder).float().eval()
    remedy = "Save it there with tokenizer.save_pretrained."
    if not any(any(folder.glob(name)) for name in TOKENIZERS):
        raise FormatError(f"{folder} has no tokenizer. {remedy}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise FormatError(f"The tokenizer in {folder} cannot be read: {error}. {remedy}") from error
    return model.to(default_device()), tokenizer


def prepare(model: nn.Module, tokenizer: Tokenizer, text: Text, most: int = MOST_TOKENS) -> Example:
    """The model inputs of a text.

    The decoder of a generating encoder-decoder gets the second text of a pair, or the text that the
    model generates; that of a classifier gets the input, as in training. A multiple-choice model
    gets a single choice.
    """
    texts = [clean(part) for part in ([text] if isinstance(text, str) else text)]
    first, second = (*texts, None)[:2]
    most = most_tokens(model, tokenizer, most)
    has_decoder = bool(setting(model, "is_encoder_decoder"))
    generates = has_decoder and model.can_generate()  # type: ignore[operator]
    batch = _arguments(model, tokenizer(first, None if generates else second, return_tensors="pt"))
    ids = batch["input_ids"]
    _check_length(ids, most)
    words = words_of(tokenizer, ids[0].tolist())
    output: list[Word] = []
    if has_decoder:
        if not generates:
            batch["decoder_input_ids"] = _shifted(model, ids)
        elif second is None:
            batch["decoder_input_ids"] = _generated(model, batch)
        else:
            target = tokenizer(text_target=second, return_tensors="pt")["input_ids"]
            _check_length(target, most)
            batch["decoder_input_ids"] = _shifted(model, target.to(ids.device))
        output = words_of(tokenizer, batch["decoder_input_ids"][0].tolist())
    if is_multiple_choice(model):
        batch = {name: x.unsqueeze(1) for name, x in batch.items()}
    return Example(texts, batch, words, output)


def clean(text: str) -> str:
    """The text without lone surrogates, which tokenizers cannot encode."""
    if not text.strip():
        raise TextError("The text is empty. Give some words.")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def setting(model: nn.Module, name: str) -> Any:
    """A field of the model's configuration; `None` if there is none."""
    return getattr(getattr(model, "config", None), name, None)


def most_tokens(model: nn.Module, tokenizer: Tokenizer, most: int) -> int:
    """Maximum number of tokens that the model, its tokenizer and its method support."""
    limits = [most, tokenizer.model_max_length, setting(model, "max_position_embeddings")]
    limits += [state.config.max_keys for state in belief_states(model)]
    return int(min(limit for limit in limits if isinstance(limit, int) and limit > 0))


def _arguments(model: nn.Module, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a tokenizer that the model accepts, on the model's device."""
    accepted = inspect.signature(model.forward).parameters
    return {name: x.to(device_of(model)) for name, x in encoded.items() if name in accepted}


def _check_length(ids: Tensor, most: int) -> None:
    length = ids.shape[1]
    if length > most:
        raise TextError(f"The text has {length} tokens; at most {most} are shown. Shorten it.")
    if not length:
        raise TextError("The text has no tokens. Give some words.")


def _shifted(model: nn.Module, ids: Tensor) -> Tensor:
    """The start token of the decoder, and all ids but the last."""
    start = ids.new_full((1, 1), setting(model, "decoder_start_token_id") or 0)
    return torch.cat([start, ids[:, :-1]], dim=1)


def _generated(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Input of the decoder that the model generates greedily: all tokens but the last."""
    with torch.no_grad(), evaluating(model), posterior_mean(model):
        found: Tensor = model.generate(
            **batch, max_new_tokens=WRITTEN, do_sample=False, num_beams=1
        )
    return found[:, :-1]


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Word]:
    """The words of token ids; unknown ids are shown as numbers."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    words: list[Word] = []
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if token is None or number in special:
            words.append(Word(token or f"#{number}", SPECIAL))
        else:
            first = not words or words[-1].flags == SPECIAL
            words.append(_word(tokenizer, token, first))
    return words


def _word(tokenizer: Tokenizer, token: str, first: bool) -> Word:
    """A token as the tokenizer decodes it after another word."""
    if token == tokenizer.unk_token:
        return Word(token)
    written: str = tokenizer.convert_tokens_to_string([BEFORE, token]).removeprefix(BEFORE)
    text = written.strip()
    joined = bool(text) and not first and not written[0].isspace() and text[0].isalnum()
    return Word(text or token, JOINED if joined else 0)
