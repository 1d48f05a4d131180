"""Uncertainty of generated text: statistics of tokens and of whole texts."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


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
        r"""$\log\bar p(y_l \mid y_{<l}, x)$, the predictive probability of each token."""
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
    r"""Texts that were each generated and scored under their own sample of attention.

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
        count = len(self.sequences)
        same = self._same.sum((0, 1)) - count
        return same / (count * (count - 1)) if count > 1 else torch.full_like(same, torch.nan)

    @cached_property
    def distinct(self) -> Int[Tensor, " batch"]:
        """The number of different texts."""
        earlier = self._same.bool() & self._earlier
        return (~earlier.any(1)).sum(0)

    @property
    def _same(self) -> Float[Tensor, "sample sample batch"]:
        words = self.sequences[..., -self.seen.shape[-1] :].masked_fill(~self.seen, -1)
        return (words[:, None] == words[None]).all(-1).float()

    @property
    def _earlier(self) -> Bool[Tensor, "sample sample 1"]:
        numbers = torch.arange(len(self.sequences), device=self.sequences.device)
        return (numbers[:, None] > numbers)[..., None]


def log_mean_exp(x: Float[Tensor, "sample ..."]) -> Float[Tensor, "..."]:
    """Log of the mean over samples, from logs."""
    return x.logsumexp(0) - math.log(len(x))


def mean_over(x: Float[Tensor, "*any token"], seen: Bool[Tensor, "*any token"]) -> Tensor:
    """Mean over the tokens of a mask."""
    return (x * seen).sum(-1) / seen.sum(-1).clamp(min=1)
