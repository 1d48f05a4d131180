"""The result of `babn.generate`: texts, and the uncertainty of tokens and of whole texts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from babn.errors import FormatError, SamplesError
from babn.prediction.result import cat_padded, data_frame, rows_at
from babn.tensor_files import read_tensors, write_tensors

BATCH_AXES = {
    "sequences": 0,
    "tokens.log_probs": 1,
    "tokens.entropy": 0,
    "tokens.expected_entropy": 0,
    "tokens.seen": 0,
    "texts.sequences": 1,
    "texts.log_probs": 1,
    "texts.seen": 1,
}
"""The tensors of a generation and their batch dimensions."""


@dataclass(frozen=True)
class TokenUncertainty:
    r"""Uncertainty of one text's tokens under samples of attention.

    With $p_s$ the model under sample $s$ of $S$, $y_l$ the text's token $l$ and
    $\bar p = \frac1S\sum_s p_s$; every number is in nats and zero after the end of a text.

    Attributes:
        log_probs: $\log p_s(y_l \mid y_{<l}, x)$.
        entropy: $H[\bar p(\cdot \mid y_{<l}, x)]$: total uncertainty of the next token.
        expected_entropy: $\frac1S\sum_s H[p_s(\cdot \mid y_{<l}, x)]$: aleatoric uncertainty.
        seen: Mask of the tokens up to and including the first end-of-text token.
    """

    log_probs: Float[Tensor, "sample batch token"]
    entropy: Float[Tensor, "batch token"]
    expected_entropy: Float[Tensor, "batch token"]
    seen: Bool[Tensor, "batch token"]

    @cached_property
    def mutual_information(self) -> Float[Tensor, "batch token"]:
        """Entropy minus expected entropy: the uncertainty due to random attention."""
        return (self.entropy - self.expected_entropy).clamp(min=0)

    @cached_property
    def mean_log_prob(self) -> Float[Tensor, "batch token"]:
        r"""$\frac1S\sum_s\log p_s(y_l \mid y_{<l}, x)$."""
        return self.log_probs.mean(0)

    @cached_property
    def log_prob(self) -> Float[Tensor, "batch token"]:
        r"""$\log\bar p(y_l \mid y_{<l}, x)$, the predictive log probability of each token."""
        return log_mean_exp(self.log_probs) * self.seen

    @cached_property
    def sequence_log_prob(self) -> Float[Tensor, " batch"]:
        r"""$\log\frac1S\sum_s\prod_l p_s(y_l \mid y_{<l}, x)$, of the whole text."""
        return log_mean_exp(self.log_probs.sum(-1))

    @cached_property
    def sequence_std(self) -> Float[Tensor, " batch"]:
        """Standard deviation over samples of the text's log probability; zero for one sample."""
        return self.log_probs.sum(-1).std(0, correction=min(1, len(self.log_probs) - 1))

    @cached_property
    def sequence_entropy(self) -> Float[Tensor, " batch"]:
        """Mean entropy of the text's tokens."""
        return mean_over(self.entropy, self.seen)

    @cached_property
    def sequence_mutual_information(self) -> Float[Tensor, " batch"]:
        """Mean mutual information of the text's tokens."""
        return mean_over(self.mutual_information, self.seen)


@dataclass(frozen=True)
class SampledTexts:
    r"""Texts, each generated and scored under its own sample of attention.

    Attributes:
        sequences: The texts $y^s$ as the model's `generate` returns them.
        log_probs: $\log p_s(y^s_l \mid y^s_{<l}, x)$; zero after the end of a text.
        seen: Mask of the tokens.
    """

    sequences: Int[Tensor, "sample batch length"]
    log_probs: Float[Tensor, "sample batch token"]
    seen: Bool[Tensor, "sample batch token"]

    @cached_property
    def predictive_entropy(self) -> Float[Tensor, " batch"]:
        r"""$-\frac1S\sum_s\log p_s(y^s \mid x)$.

        Estimates the entropy of texts if their tokens were sampled (`do_sample=True`); with greedy
        decoding it measures how improbable the generated texts are.
        """
        return -self.log_probs.sum(-1).mean(0)

    @cached_property
    def normalized_entropy(self) -> Float[Tensor, " batch"]:
        r"""$-\frac1S\sum_s\frac{1}{L_s}\log p_s(y^s \mid x)$ with lengths $L_s$.

        The length-normalised predictive entropy of Malinin and Gales (2021,
        <https://arxiv.org/abs/2002.07650>), which does not grow with the length of a text.
        """
        return -mean_over(self.log_probs, self.seen).mean(0)

    @cached_property
    def agreement(self) -> Float[Tensor, " batch"]:
        """The share of pairs of samples whose texts are the same; NaN for one sample."""
        words = self._words
        count = len(words)
        same = (words[:, None] == words).all(-1).float().sum((0, 1)) - count
        return same / (count * (count - 1)) if count > 1 else torch.full_like(same, torch.nan)

    @cached_property
    def distinct(self) -> Int[Tensor, " batch"]:
        """The number of different texts."""
        counts = [len(texts.unique(dim=0)) for texts in self._words.unbind(1)]
        return torch.tensor(counts, device=self.sequences.device)

    @property
    def _words(self) -> Int[Tensor, "sample batch token"]:
        """The generated tokens, all the same after the end of a text."""
        return self.sequences[..., -self.seen.shape[-1] :].masked_fill(~self.seen, -1)


@dataclass(frozen=True)
class Generation:
    """Generated texts and their uncertainty.

    Indexing selects prompts and keeps the batch dimension, so that `generation[3]` is the
    generation for one prompt.

    Attributes:
        sequences: Texts of the posterior mean, as the model's `generate` returns them.
        prompt_length: The number of prompt tokens at their beginning.
        tokens: The uncertainty of each of their tokens.
        texts: Texts generated under samples of attention, or `None` with `texts=False`.
        pad_token_id: The token before shorter prompts and after shorter texts.
    """

    sequences: Int[Tensor, "batch length"]
    prompt_length: int
    tokens: TokenUncertainty
    texts: SampledTexts | None
    pad_token_id: int = 0

    @property
    def new_tokens(self) -> Int[Tensor, "batch token"]:
        """The generated tokens without the prompt."""
        return self.sequences[:, self.prompt_length :]

    def __len__(self) -> int:
        """The number of prompts."""
        return len(self.sequences)

    def __getitem__(self, index: Any) -> "Generation":
        """The generation for some prompts: an integer, a slice, a list, or a mask."""
        rows = rows_at(index, len(self))
        return self._with(lambda name, x: x[(slice(None),) * BATCH_AXES[name] + (rows,)])

    def __repr__(self) -> str:
        """One line with the sizes and the mean uncertainty."""
        samples, prompts, tokens = self.tokens.log_probs.shape
        entropy = float(self.tokens.sequence_entropy.mean())
        information = float(self.tokens.sequence_mutual_information.mean())
        return (
            f"Generation({samples} samples, {prompts} prompts, up to {tokens} new tokens, "
            f"mean entropy {entropy:.3f}, mean mutual information {information:.3f})"
        )

    @staticmethod
    def cat(generations: Sequence["Generation"]) -> "Generation":
        """Joins generations for several batches: prompts padded on the left, texts on the right."""
        kinds = {(len(g.tokens.log_probs), g.texts is None) for g in generations}
        if len(kinds) != 1:
            raise SamplesError(
                f"Generations with {sorted(count for count, _ in kinds)} samples, with and without "
                "texts, cannot be joined. Generate all with the same samples= and texts=."
            )
        pad = generations[0].pad_token_id
        prompt = max(g.prompt_length for g in generations)
        joined = {}
        for name in generations[0]._tensors:
            whole = name.endswith("sequences")
            parts = [
                F.pad(g._tensors[name], (prompt - g.prompt_length if whole else 0, 0), value=pad)
                for g in generations
            ]
            joined[name] = cat_padded(parts, BATCH_AXES[name], pad if whole else 0)
        return _from_tensors(joined, prompt, pad)

    def to(self, device: torch.device | str) -> "Generation":
        """The generation on another device."""
        return self._with(lambda _, x: x.to(device))

    def save(self, path: Path | str) -> None:
        """Writes the generation to a safetensors file, which `Generation.load` reads."""
        numbers = {"prompt_length": self.prompt_length, "pad_token_id": self.pad_token_id}
        about = {name: str(value) for name, value in numbers.items()}
        write_tensors(Path(path), self._tensors, about)

    @staticmethod
    def load(path: Path | str) -> "Generation":
        """Reads a file that `save` wrote."""
        tensors, about = read_tensors(Path(path))
        try:
            return _from_tensors(tensors, int(about["prompt_length"]), int(about["pad_token_id"]))
        except (KeyError, ValueError) as error:
            raise FormatError(f"{path} holds no generation: {error} is missing.") from error

    def decode(self, tokenizer: Any) -> list[str]:
        """The generated texts without their prompts."""
        new = self.new_tokens[:, : self.tokens.seen.shape[1]]
        kept = [row[seen] for row, seen in zip(new, self.tokens.seen, strict=True)]
        return [tokenizer.decode(row, skip_special_tokens=True) for row in kept]

    def to_pandas(self, tokenizer: Any = None) -> Any:
        """A data frame with one row for each prompt.

        Args:
            tokenizer: The model's tokenizer, for a column with the generated texts.
        """
        columns = {
            "tokens": self.tokens.seen.sum(-1),
            "log_prob": self.tokens.sequence_log_prob,
            "std": self.tokens.sequence_std,
            "entropy": self.tokens.sequence_entropy,
            "mutual_information": self.tokens.sequence_mutual_information,
        }
        if self.texts is not None:
            columns["agreement"] = self.texts.agreement
            columns["distinct"] = self.texts.distinct
        frame = data_frame(columns)
        if tokenizer is not None:
            frame.insert(0, "text", self.decode(tokenizer))
        return frame

    @property
    def _tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        names = [n for n in BATCH_AXES if self.texts is not None or not n.startswith("texts.")]
        return {name: attrgetter(name)(self) for name in names}

    def _with(self, change: Callable[[str, Tensor], Tensor]) -> "Generation":
        """The generation with changed tensors."""
        changed = {name: change(name, x) for name, x in self._tensors.items()}
        return _from_tensors(changed, self.prompt_length, self.pad_token_id)


def _from_tensors(tensors: dict[str, Tensor], prompt_length: int, pad: int) -> Generation:
    """The generation that `Generation._tensors` describes."""

    def of(part: str) -> dict[str, Tensor]:
        return {n.removeprefix(part): tensors[n] for n in BATCH_AXES if n.startswith(part)}

    tokens = TokenUncertainty(**of("tokens."))
    texts = SampledTexts(**of("texts.")) if "texts.seen" in tensors else None
    return Generation(tensors["sequences"], prompt_length, tokens, texts, pad)


def log_mean_exp(x: Float[Tensor, "sample ..."]) -> Float[Tensor, "..."]:
    """Log of the mean over samples, from logs."""
    return x.logsumexp(0) - math.log(len(x))


def mean_over(x: Float[Tensor, "*any token"], seen: Bool[Tensor, "*any token"]) -> Tensor:
    """Mean over the tokens of a mask."""
    return (x * seen).sum(-1) / seen.sum(-1).clamp(min=1)
