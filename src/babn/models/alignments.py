"""Words whose alignments to source positions are latent, enumerated or sampled."""

from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from babn.attention.randomness import Randomness
from babn.models.translation_parts import IGNORED, Memory, WordLayer

AT_ONCE = 2**25
"""Logits that are alive at one time where alignments are enumerated: 128 megabytes in float32."""


@dataclass(frozen=True)
class Aligned:
    r"""The words of a batch, given alignments: $p(y_t \mid x, y_{<t}, z_t)$.

    Attributes:
        words: Logits of words from the sum of what state and source position contribute.
        own: What the decoder's states contribute.
        memory: The sources, with what their positions contribute.
        labels: The words; `IGNORED` at padding.
    """

    words: WordLayer
    own: Float[Tensor, "batch target size"]
    memory: Memory
    labels: Int[Tensor, "batch target"]

    @property
    def counted(self) -> Bool[Tensor, "batch target"]:
        """Where there are words, and source positions to read them from."""
        return (self.labels != IGNORED) & self.memory.text.seen.any(-1, keepdim=True)

    def log_probs(
        self, row: Int[Tensor, "pair"], target: Int[Tensor, "pair"], source: Int[Tensor, "pair"]
    ) -> Float[Tensor, "pair"]:
        """Log-probabilities of words with chosen alignments, some at a time.

        What backward needs of logits is computed once more there, so that they are never all kept.
        """
        size = max(1, AT_ONCE // self.words.output.out_features)
        chunks = zip(row.split(size), target.split(size), source.split(size), strict=True)
        return torch.cat([checkpoint(self._chunk, *each, use_reentrant=False) for each in chunks])

    def _chunk(self, row: Tensor, target: Tensor, source: Tensor) -> Tensor:
        logits = self.words(self.own[row, target] + self.memory.value[row, source])
        return -F.cross_entropy(logits, self.labels[row, target], reduction="none")

    def logits(
        self, weights: Float[Tensor, "batch target source"]
    ) -> Float[Tensor, "batch target word"]:
        """Logits at weighted means of source positions."""
        return self.words(self.own + self.memory.context(weights))

    def soft(self, weights: Float[Tensor, "batch target source"]) -> Float[Tensor, "batch target"]:
        """Log-probabilities of words at weighted means of source positions; zero at padding."""
        return self.gold(self.logits(weights))

    def gold(self, logits: Float[Tensor, "batch target word"]) -> Float[Tensor, "batch target"]:
        """Log-probabilities of words; zero at padding."""
        found = logits.transpose(1, 2)
        return -F.cross_entropy(found, self.labels, ignore_index=IGNORED, reduction="none")


def enumerated(
    words: Aligned, log_q: Float[Tensor, "batch target source"]
) -> Float[Tensor, "batch target"]:
    r"""$\sum_s q(z_t = s) \log p(y_t \mid z_t = s)$; zero at padding."""
    chosen = words.counted.unsqueeze(-1) & words.memory.text.seen.unsqueeze(1)
    pairs = chosen.nonzero(as_tuple=True)
    terms = log_q[pairs].exp() * words.log_probs(*pairs)
    return torch.zeros_like(log_q).index_put(pairs, terms).sum(-1)


def reinforced(
    words: Aligned,
    log_q: Float[Tensor, "batch target source"],
    baseline: Float[Tensor, "batch target"],
    samples: int,
) -> Float[Tensor, "batch target"]:
    r"""An estimate of the same from samples of $q$, its gradient by REINFORCE; zero at padding.

    $$\nabla = \nabla \log p(y_t \mid z_t)
    + (\log p(y_t \mid z_t) - B_t)\, \nabla \log q(z_t),$$

    with the baseline $B_t$, which may not depend on $z_t$.
    """
    row, target = words.counted.nonzero(as_tuple=True)
    own_q = words.memory.probabilities(log_q)[row, target]
    drawn = torch.multinomial(own_q.detach(), samples, replacement=True)
    places = (row.repeat_interleave(samples), target.repeat_interleave(samples), drawn.flatten())
    log_prob = words.log_probs(*places).view_as(drawn)
    reward = (log_prob - baseline[row, target].unsqueeze(-1)).detach()
    score = log_q[row, target].gather(-1, drawn)
    # The second term has a gradient and no value, so that values are those of the bound.
    terms = log_prob + reward * (score - score.detach())
    return torch.zeros_like(log_q[..., 0]).index_put((row, target), terms.mean(-1))


def relaxed(
    words: Aligned, log_q: Float[Tensor, "batch target source"], temperature: float, samples: int
) -> Float[Tensor, "batch target"]:
    """The same, its gradient by straight-through Gumbel-softmax; biased, and of less variance."""
    seen = words.memory.text.seen
    padding = ~seen & seen.any(-1, keepdim=True)
    scores = log_q.masked_fill(padding.unsqueeze(1), -torch.inf)
    drawn = (F.gumbel_softmax(scores, temperature, hard=True) for _ in range(samples))
    return torch.stack([words.soft(weights) for weights in drawn]).mean(0)


def drawn(
    memory: Memory, log_p: Float[Tensor, "batch target source"], randomness: Randomness
) -> Float[Tensor, "batch target source"]:
    """One alignment for each target position, as weights of zero and one (Gumbel-max)."""
    uniform = randomness.uniform(log_p.detach())
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
    r"""$\log \sum_s p(z_t = s)\, p(y \mid z_t = s)$ for every word, some positions at a time."""
    log_p = log_p.masked_fill(~memory.text.seen.unsqueeze(1), torch.finfo(log_p.dtype).min)
    size = max(1, AT_ONCE // (own[..., 0].numel() * words.output.out_features))
    chunks = zip(memory.value.split(size, 1), log_p.split(size, 2), strict=True)
    return reduce(torch.logaddexp, (_mixed(words, own, *chunk) for chunk in chunks))


def _mixed(words: WordLayer, own: Tensor, value: Tensor, log_p: Tensor) -> Tensor:
    logits = words(own.unsqueeze(2) + value.unsqueeze(1))
    return (logits.log_softmax(-1) + log_p.unsqueeze(-1)).logsumexp(2)
