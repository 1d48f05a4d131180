"""Sentence encoder and masked language model, loaded by transformers from folders."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from babn.text import quiet
from babn_paper.attacks.resources import ResourceError
from babn_paper.experiments.training_state import default_device
from babn_paper.pretrained import FAILURES

LONGEST = 512
"""Largest number of tokens to which texts are truncated."""

WORDPIECE_FAMILIES = ("bert", "roberta", "electra", "bart", "longformer", "xlnet")
"""Model types for which TextAttack distinguishes words from subwords."""


class MeanPooled:
    """A sentence encoder: a transformer with mean pooling over tokens.

    Args:
        folder: Folder of the model and its tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel

        self.tokenizer, self.model = _load(AutoModel, folder)

    def __call__(self, texts: Sequence[str]) -> Float[Tensor, "text dim"]:
        """Encodes texts, repeated texts only once."""
        places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        found = self._encode(list(places))
        return found[[places[text] for text in texts]]

    def _encode(self, texts: list[str]) -> Float[Tensor, "text dim"]:
        batch = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=longest(self.model),
            return_tensors="pt",
        ).to(self.model.device)
        with torch.no_grad():
            states = self.model(**batch).last_hidden_state
        inside = batch["attention_mask"].unsqueeze(-1)
        mean: Tensor = (states * inside).sum(1) / inside.sum(1).clamp(min=1)
        return mean.cpu()


def load_masked_lm(folder: Path) -> tuple[Any, Any]:
    """Loads a masked language model and its tokenizer."""
    from transformers import AutoModelForMaskedLM

    tokenizer, model = _load(AutoModelForMaskedLM, folder)
    if model.config.model_type not in WORDPIECE_FAMILIES:
        raise ResourceError(
            f"{folder} is a model of type {model.config.model_type}, for which BAE cannot "
            f"distinguish words from subwords. Give one of {list(WORDPIECE_FAMILIES)}."
        )
    if tokenizer.mask_token is None:
        raise ResourceError(f"The tokenizer in {folder} has no mask token. Set its mask_token.")
    return model, tokenizer


def longest(model: Any) -> int:
    """Number of tokens to which texts are truncated for a model."""
    most = getattr(model.config, "max_position_embeddings", LONGEST)
    # RoBERTa numbers its positions from pad_token_id + 1.
    offset = model.config.pad_token_id + 1 if "roberta" in model.config.model_type else 0
    return min(LONGEST, most - offset)


def _load(auto: Any, folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, found = auto.from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
    except FAILURES as error:
        raise ResourceError(
            f"{folder} cannot be loaded: {shorten(str(error), 300)} Save a model and its "
            "tokenizer there with save_pretrained."
        ) from error
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)
    if missing:
        raise ResourceError(
            f"{folder} has no weights for {missing[0]} and {len(missing) - 1} more, which would be "
            "random. Give a model whose weights match its config.json."
        )
    return tokenizer, model.to(default_device()).eval()
