"""A closer look at single sentences: what the samples answer, and where attention is unsure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import babn
from babn.demo.batches import Batch, Tokenizer, device_of, encode
from babn.demo.evaluation import Answers, Texts

LONGEST = 14
"""Tokens of a sentence whose attention still fits on the page."""

CLASSES = 5


@dataclass(frozen=True)
class ClassBar:
    """Probability of one intent, over samples of attention."""

    intent: str
    intended: bool
    mean: float
    std: float
    samples: list[float]


@dataclass(frozen=True)
class Portrait:
    """One sentence, what the model makes of it, and how sure its attention is.

    Attributes:
        kind: What the sentence is an example of.
        text: The sentence.
        entropy: Entropy of the prediction in nats.
        mutual_information: The part of it that attention accounts for.
        bars: The most probable intents.
        tokens: The sentence as the model reads it.
        layer: Number of the attention layer shown, from 1.
        weights: Posterior mean of its attention by query and key, averaged over heads.
        relative_std: Standard deviation divided by mean of the same.
    """

    kind: Literal["sure", "unsure"]
    text: str
    entropy: float
    mutual_information: float
    bars: list[ClassBar]
    tokens: list[str]
    layer: int
    weights: list[list[float]]
    relative_std: list[list[float]]


def portraits(
    model: nn.Module, tokenizer: Tokenizer, answers: Answers, texts: Texts, names: Sequence[str]
) -> list[Portrait]:
    """The clear text with the least mutual information, and the ambiguous one with the most.

    The clear one is answered correctly, and with a confidence of more than one half.
    """
    confidence, intent = answers.clear.probs.max(-1)
    right = (intent == torch.tensor(texts.clear.labels)) & (confidence > 0.5)
    ambiguous = [item.text for item in texts.ambiguous]
    short = _short(tokenizer, texts.clear.texts)
    sure = _lowest(answers.clear.mutual_information, right & short)
    unsure = _lowest(-answers.ambiguous.mutual_information, _short(tokenizer, ambiguous))
    batch = encode(tokenizer, [ambiguous[unsure]], device_of(model))
    layer = noisiest_layer(model, tokenizer, batch)
    artist = _Artist(model, tokenizer, names, layer)
    intended = (names[texts.clear.labels[sure]],)
    return [
        artist.draw("sure", texts.clear.texts[sure], intended, answers.clear, sure),
        artist.draw(
            "unsure", ambiguous[unsure], texts.ambiguous[unsure].intents, answers.ambiguous, unsure
        ),
    ]


def noisiest_layer(model: nn.Module, tokenizer: Tokenizer, batch: Batch) -> int:
    """The layer whose attention to words has the largest standard deviation, counted from 1.

    Attention to special tokens is left out: where most of it goes there, it says little.
    """
    special = torch.tensor(tokenizer.all_special_ids, device=batch["input_ids"].device)
    words = ~torch.isin(batch["input_ids"], special)
    noise = [
        (each.mean * each.relative_std * words[:, None, None]).sum(-1).mean()
        for each in babn.attention(model, batch)
    ]
    return int(torch.stack(noise).argmax()) + 1


@dataclass(frozen=True)
class _Artist:
    """Draws portraits with one model."""

    model: nn.Module
    tokenizer: Tokenizer
    names: Sequence[str]
    layer: int

    def draw(
        self,
        kind: Literal["sure", "unsure"],
        text: str,
        intended: Sequence[str],
        answers: babn.Prediction,
        row: int,
    ) -> Portrait:
        """The portrait of text number `row` of `answers`."""
        batch = encode(self.tokenizer, [text], device_of(self.model))
        attention = babn.attention(self.model, batch)[self.layer - 1]
        return Portrait(
            kind=kind,
            text=text,
            entropy=answers.entropy[row].item(),
            mutual_information=answers.mutual_information[row].item(),
            bars=self._bars(answers, row, intended),
            tokens=self.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist()),
            layer=self.layer,
            weights=attention.mean[0].mean(0).tolist(),
            relative_std=attention.relative_std[0].mean(0).tolist(),
        )

    def _bars(self, answers: babn.Prediction, row: int, intended: Sequence[str]) -> list[ClassBar]:
        return [
            ClassBar(
                intent=self.names[label],
                intended=self.names[label] in intended,
                mean=answers.probs[row, label].item(),
                std=answers.std[row, label].item(),
                samples=answers.sample_probs[:, row, label].tolist(),
            )
            for label in answers.probs[row].topk(CLASSES).indices.tolist()
        ]


def _short(tokenizer: Tokenizer, texts: Sequence[str]) -> Bool[Tensor, "text"]:
    """Which texts are short enough to be shown."""
    return torch.tensor([len(ids) <= LONGEST for ids in tokenizer(list(texts))["input_ids"]])


def _lowest(values: Float[Tensor, "text"], allowed: Bool[Tensor, "text"]) -> int:
    """Index of the lowest allowed value; of the lowest of all if none is allowed."""
    kept = values.masked_fill(~allowed, float("inf"))
    return int((kept if bool(allowed.any()) else values).argmin())
