r"""Variational attention: latent alignments (Deng et al. 2018, https://arxiv.org/abs/1807.03756).

Each target position $t$ has a latent alignment $z_t$, the source position of its word. Attention
is its prior, and training maximises the evidence lower bound

$$\sum_t E_{q(z_t \mid x, y)} \log p(y_t \mid x, y_{<t}, z_t)
- \mathrm{KL}(q(z_t \mid x, y) \,\|\, p(z_t \mid x, y_{<t})) \le \log p(y \mid x).$$
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from babn.attention.masking import log_normalize
from babn.attention.noise_source import NoiseSource
from babn_paper.models.texts import BiLstm, Text
from babn_paper.models.translation_parts import (
    IGNORED,
    Memory,
    TranslationConfig,
    TranslationOutput,
    WordLayer,
    logits_at_once,
)


@dataclass(frozen=True)
class Aligned:
    r"""The words of a batch, given alignments: $p(y_t \mid x, y_{<t}, z_t)$.

    Attributes:
        words: Computes logits of words from the sum of the contributions of state and source.
        own: Contributions of the decoder's states.
        memory: The sources, with the contributions of their positions.
        labels: The words; `IGNORED` at padding.
    """

    words: WordLayer
    own: Float[Tensor, "batch target size"]
    memory: Memory
    labels: Int[Tensor, "batch target"]

    @property
    def counted(self) -> Bool[Tensor, "batch target"]:
        """Mask of the words whose source is not empty."""
        return (self.labels != IGNORED) & self.memory.text.seen.any(-1, keepdim=True)

    def log_probs(self) -> Float[Tensor, "batch target source"]:
        """Returns log-probabilities of words at every source position.

        Logits are computed in chunks and recomputed in the backward pass, to limit memory.
        """
        each = self.labels.shape[1] * self.words.output.out_features
        together = max(1, logits_at_once(self.own.device) // each)
        sources = self.memory.value.shape[1]
        rows, positions = max(1, together // sources), min(together, sources)
        own, labels = self.own.split(rows), self.labels.clamp(min=0).split(rows)
        chunks = zip(own, labels, self.memory.value.split(rows), strict=True)
        return torch.cat([torch.cat(self._at_some(*each, positions), -1) for each in chunks])

    def _at_some(self, own: Tensor, labels: Tensor, value: Tensor, positions: int) -> list[Tensor]:
        return [
            checkpoint(self._at, own, labels, some, use_reentrant=False)
            for some in value.split(positions, 1)
        ]

    def _at(self, own: Tensor, labels: Tensor, value: Tensor) -> Tensor:
        logits = self.words(own.unsqueeze(2) + value.unsqueeze(1))
        precise = torch.promote_types(logits.dtype, torch.float32)
        wanted = labels[..., None, None].expand(*logits.shape[:-1], 1)
        return logits.log_softmax(-1, dtype=precise).gather(-1, wanted).squeeze(-1)

    def logits(
        self, weights: Float[Tensor, "batch target source"]
    ) -> Float[Tensor, "batch target word"]:
        """Returns logits at weighted means of source positions."""
        return self.words(self.own + self.memory.context(weights))

    def soft(self, weights: Float[Tensor, "batch target source"]) -> Float[Tensor, "batch target"]:
        """Returns log-probabilities of words at weighted means of positions; 0 at padding."""
        return self.gold(self.logits(weights))

    def gold(self, logits: Float[Tensor, "batch target word"]) -> Float[Tensor, "batch target"]:
        """Returns log-probabilities of words; 0 at padding."""
        found = logits.transpose(1, 2)
        return -F.cross_entropy(found, self.labels, ignore_index=IGNORED, reduction="none")


def enumerated(
    words: Aligned, log_q: Float[Tensor, "batch target source"]
) -> Float[Tensor, "batch target"]:
    r"""Computes $\sum_s q(z_t = s) \log p(y_t \mid z_t = s)$; 0 at padding."""
    chosen = words.counted.unsqueeze(-1) & words.memory.text.seen.unsqueeze(1)
    return (log_q.exp() * words.log_probs()).masked_fill(~chosen, 0.0).sum(-1)


def reinforced(
    words: Aligned,
    log_q: Float[Tensor, "batch target source"],
    baseline: Float[Tensor, "batch target"],
    samples: int,
) -> Float[Tensor, "batch target"]:
    r"""Estimates the sum of `enumerated` from samples of $q$, with the gradient of REINFORCE.

    The gradient (Williams 1992, https://doi.org/10.1007/BF00992696) is

    $$\nabla = \nabla \log p(y_t \mid z_t)
    + (\log p(y_t \mid z_t) - B_t)\, \nabla \log q(z_t),$$

    with a baseline $B_t$ that does not depend on $z_t$. The estimate is 0 at padding.
    """
    counted = words.counted
    q = words.memory.probabilities(log_q.detach())
    q = q.masked_fill(~counted.unsqueeze(-1), 1.0)  # any distribution that can be sampled
    drawn = torch.multinomial(q.flatten(0, 1), samples, replacement=True).view(*counted.shape, -1)
    total = torch.zeros_like(log_q[..., 0])
    for place in drawn.split(1, -1):
        log_prob = words.soft(torch.zeros_like(log_q).scatter(-1, place, 1.0))
        reward = (log_prob - baseline).detach()
        score = log_q.gather(-1, place).squeeze(-1)
        # The second term has a gradient and the value 0, so that the value is that of the bound.
        total = total + log_prob + reward * (score - score.detach())
    return (total / samples).masked_fill(~counted, 0.0)


def relaxed(
    words: Aligned, log_q: Float[Tensor, "batch target source"], temperature: float, samples: int
) -> Float[Tensor, "batch target"]:
    """Estimates the sum of `enumerated` with straight-through Gumbel-softmax gradients.

    The gradients (Jang et al. 2017, https://arxiv.org/abs/1611.01144) are biased and have a smaller
    variance than those of `reinforced`.
    """
    seen = words.memory.text.seen
    padding = ~seen & seen.any(-1, keepdim=True)
    scores = log_q.masked_fill(padding.unsqueeze(1), -torch.inf)
    drawn = (F.gumbel_softmax(scores, temperature, hard=True) for _ in range(samples))
    return torch.stack([words.soft(weights) for weights in drawn]).mean(0)


def drawn(
    memory: Memory, log_p: Float[Tensor, "batch target source"], noise_source: NoiseSource
) -> Float[Tensor, "batch target source"]:
    """Samples one alignment per target position as one-hot weights, by the Gumbel-max trick."""
    uniform = noise_source.uniform(log_p.detach())
    scores = (log_p - torch.log(-torch.log(uniform))).masked_fill(
        ~memory.text.seen.unsqueeze(1), -torch.inf
    )
    weights = F.one_hot(scores.argmax(-1), scores.shape[-1]).to(log_p.dtype)
    return weights * memory.text.seen.unsqueeze(1)


def marginal(
    words: WordLayer,
    own: Float[Tensor, "batch target size"],
    memory: Memory,
    log_p: Float[Tensor, "batch target source"],
) -> Float[Tensor, "batch target word"]:
    r"""Computes $\log \sum_s p(z_t = s)\, p(y \mid z_t = s)$ for every word, in chunks."""
    log_p = log_p.masked_fill(~memory.text.seen.unsqueeze(1), torch.finfo(log_p.dtype).min)
    size = max(1, logits_at_once(own.device) // (own[..., 0].numel() * words.output.out_features))
    chunks = zip(memory.value.split(size, 1), log_p.split(size, 2), strict=True)
    return reduce(torch.logaddexp, (_mixed(words, own, *chunk) for chunk in chunks))


def _mixed(words: WordLayer, own: Tensor, value: Tensor, log_p: Tensor) -> Tensor:
    logits = words(own.unsqueeze(2) + value.unsqueeze(1))
    return (logits.log_softmax(-1) + log_p.unsqueeze(-1)).logsumexp(2)


def log_probabilities(
    scores: Float[Tensor, "batch target source"], seen: Bool[Tensor, "batch source"]
) -> Float[Tensor, "batch target source"]:
    """Returns log-probabilities of alignments, at least in single precision; 0 at padding."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return log_normalize(scores.unsqueeze(1), seen[:, None, None]).squeeze(1)


class InferenceNetwork(nn.Module):
    r"""Approximate posterior of alignments, given the whole target.

    $$q(z_t = s \mid x, y) \propto \exp(\bar y_t^\top W \bar x_s),$$

    where $\bar x$ and $\bar y$ are the states of BiLSTMs over source and target. They share only
    the word vectors with the model.
    """

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        sizes = config.embedding_size, config.encoder_size, config.layers, config.dropout
        self.source, self.target = BiLstm(*sizes), BiLstm(*sizes)
        self.projection = nn.Linear(2 * config.encoder_size, 2 * config.encoder_size, bias=False)

    def forward(
        self,
        source: Float[Tensor, "batch source dim"],
        target: Float[Tensor, "batch target dim"],
        source_text: Text,
        target_text: Text,
    ) -> Float[Tensor, "batch target source"]:
        """Returns log-probabilities of alignments from word vectors."""
        query = self.projection(self.target(target, target_text))
        key = self.source(source, source_text)
        return log_probabilities(query @ key.transpose(-1, -2), source_text.seen)


def kl_divergence(
    log_q: Float[Tensor, "batch target source"],
    log_p: Float[Tensor, "batch target source"],
    seen: Bool[Tensor, "batch source"],
) -> Float[Tensor, "batch target"]:
    r"""Computes $\mathrm{KL}(q \| p) = \sum_s q_s (\log q_s - \log p_s)$ over source positions."""
    terms = log_q.exp() * (log_q - log_p)
    return terms.masked_fill(~seen.unsqueeze(1), 0.0).sum(-1)


def lower_bound(
    words: Aligned,
    log_q: Float[Tensor, "batch target source"],
    log_p: Float[Tensor, "batch target source"],
    config: TranslationConfig,
) -> TranslationOutput:
    """Returns the negative bound, its terms, and logits with soft attention.

    Args:
        words: Target words, given alignments.
        log_q: Posterior of alignments.
        log_p: Prior of alignments.
        config: Has the estimator of the first term and the weight of the second.
    """
    kl = kl_divergence(log_q, log_p, words.memory.text.seen)[words.counted].mean()
    with torch.no_grad():
        logits = words.logits(words.memory.probabilities(log_p))
    expected = likelihood(words, log_q, logits, config)[words.counted].mean()
    loss: Any = config.kl_weight * kl - expected
    return TranslationOutput(loss=loss, logits=logits, likelihood=expected, kl=kl)


def likelihood(
    words: Aligned,
    log_q: Float[Tensor, "batch target source"],
    logits: Float[Tensor, "batch target word"],
    config: TranslationConfig,
) -> Float[Tensor, "batch target"]:
    """Computes or estimates the first term of the bound for each word; 0 at padding.

    Args:
        words: Target words, given alignments.
        log_q: Posterior of alignments.
        logits: Logits with soft attention, for the baseline.
        config: Has the estimator.
    """
    if config.attention == "va-enum":
        return enumerated(words, log_q)
    if config.estimator == "gumbel":
        return relaxed(words, log_q, config.gumbel_temperature, config.train_samples)
    baseline = torch.zeros_like(log_q[..., 0])
    if config.baseline:
        baseline = words.gold(logits)
    return reinforced(words, log_q, baseline, config.train_samples)
