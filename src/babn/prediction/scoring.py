"""Scores of texts under a language model, token by token."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.prediction.predict import find_logits, repeat
from babn.prediction.temperature import get_temperature
from babn.prediction.texts import TokenUncertainty


@dataclass(frozen=True)
class Prompt:
    """The prompt of a generation.

    Attributes:
        model: A converted model that generates.
        inputs: Keyword arguments of its `generate`, with an attention mask.
    """

    model: Any
    inputs: dict[str, Any]

    @property
    def rows(self) -> int:
        """The batch size."""
        return next(x.shape[0] for x in self.inputs.values() if isinstance(x, Tensor) and x.ndim)

    @property
    def is_pair(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @property
    def length(self) -> int:
        """The number of prompt tokens in a generated sequence."""
        given = self.inputs.get("decoder_input_ids" if self.is_pair else "input_ids")
        return 1 if given is None else given.shape[1]

    @property
    def padding(self) -> list[int]:
        """The number of padding tokens on the left of each prompt."""
        mask = self.inputs.get("attention_mask")
        if self.is_pair or mask is None:
            return [0] * self.rows
        return (mask.cumsum(-1) == 0).sum(-1).tolist()

    def repeated(self, count: int) -> dict[str, Any]:
        """The inputs `count` times, one copy after the other."""
        return {name: repeat(x, count, self.rows) for name, x in self.inputs.items()}

    def logits(self, sequences: Int[Tensor, "rows length"]) -> Float[Tensor, "rows token word"]:
        """Next-token logits at each new token of `sequences`."""
        new = sequences.shape[1] - self.length
        inputs = self.repeated(len(sequences) // self.rows)
        accepted = inspect.signature(_unwrapped(self.model).forward).parameters
        if self.is_pair:
            inputs["decoder_input_ids"] = sequences[:, :-1]
            return self._tempered(self.model(**inputs), new)
        seen = torch.nn.functional.pad(inputs["attention_mask"], (0, new - 1), value=1)
        inputs |= {"input_ids": sequences[:, :-1], "attention_mask": seen}
        if "position_ids" in accepted:
            inputs["position_ids"] = (seen.cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in accepted:
            inputs["logits_to_keep"] = new
        inputs.pop("token_type_ids", None)
        return self._tempered(self.model(**inputs), new)

    def _tempered(self, output: Any, new: int) -> Tensor:
        return find_logits(output)[:, -new:].float() / get_temperature(self.model)


def _unwrapped(model: Any) -> Any:
    """The base model inside a PEFT wrapper, whose forward names its arguments."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class TokenStatistics:
    """Running sums over samples, so that vocabulary-sized tensors are not kept for each sample."""

    def __init__(self) -> None:
        self.log_probs: list[Tensor] = []
        self.probs: Tensor | float = 0.0
        self.entropies: Tensor | float = 0.0

    def add(
        self, logits: Float[Tensor, "sample batch token word"], words: Int[Tensor, "batch token"]
    ) -> None:
        """Adds the logits of further samples at the same words."""
        log_probs = logits.log_softmax(-1)
        self.log_probs.append(log_probs_of(logits, words.expand(logits.shape[:-1])))
        probs = log_probs.exp()
        self.probs = self.probs + probs.sum(0)
        self.entropies = self.entropies - (probs * log_probs).sum(-1).sum(0)

    def result(self, seen: Bool[Tensor, "batch token"]) -> TokenUncertainty:
        """The statistics over all samples."""
        log_probs = torch.cat(self.log_probs)
        mean = torch.as_tensor(self.probs) / len(log_probs)
        entropy = -torch.xlogy(mean, mean).sum(-1)
        expected = torch.as_tensor(self.entropies) / len(log_probs)
        return TokenUncertainty(log_probs * seen, entropy * seen, expected * seen, seen)


def log_probs_of(
    logits: Float[Tensor, "*any token word"], words: Int[Tensor, "*any token"]
) -> Float[Tensor, "*any token"]:
    """Log probabilities of `words`."""
    return logits.log_softmax(-1).gather(-1, words.unsqueeze(-1)).squeeze(-1)


def up_to_the_end(words: Int[Tensor, "*any token"], ends: list[int]) -> Bool[Tensor, "*any token"]:
    """Mask of the tokens up to and including the first end-of-text token."""
    ended = torch.isin(words, torch.tensor(ends, dtype=words.dtype, device=words.device))
    return ended.cumsum(-1) - ended.long() == 0
