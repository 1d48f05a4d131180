"""Two sentences in detail, with many samples of their predictions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import babn
from babn.demo.outcome import Example, Kind, Predictions, Texts

SAMPLES = 100
"""Samples of a single sentence, which cost little; shares and intervals need more than means."""

LONGEST = 14
"""Tokens of a sentence whose attention is easily compared."""


def choose_examples(
    model: nn.Module,
    tokenizer: Any,
    predictions: Predictions,
    texts: Texts,
    names: tuple[str, ...],
    seed: int,
) -> list[Example]:
    """A sentence of each kind, with the same number of tokens so that their maps compare.

    The unsure one is the ambiguous text with the largest mutual information; the sure one is the
    clear text with the smallest among those that are predicted correctly.
    """
    ambiguous = [item.text for item in texts.ambiguous]
    lengths = _lengths(tokenizer, ambiguous)
    unsure = _lowest(-predictions.ambiguous.mutual_information, lengths <= LONGEST)
    right = predictions.clear.probs.argmax(-1) == torch.tensor(texts.clear.labels)
    as_long = _lengths(tokenizer, texts.clear.texts) == lengths[unsure]
    sure = _lowest(predictions.clear.mutual_information, right & as_long)
    chosen: dict[Kind, str] = {"sure": texts.clear.texts[sure], "unsure": ambiguous[unsure]}
    predict = partial(babn.predict, model, tokenizer=tokenizer, progress=False)
    return [
        Example(kind, text, predict([text], samples=SAMPLES, seed=seed).to("cpu"), names)
        for kind, text in chosen.items()
    ]


def _lengths(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    return torch.tensor([len(ids) for ids in tokenizer(list(texts))["input_ids"]])


def _lowest(values: Float[Tensor, "text"], allowed: Bool[Tensor, "text"]) -> int:
    """Index of the lowest allowed value; of the lowest of all if none is allowed."""
    kept = values.masked_fill(~allowed, float("inf"))
    return int((kept if bool(allowed.any()) else values).argmin())
