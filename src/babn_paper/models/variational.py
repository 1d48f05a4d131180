r"""Variational attention (Deng, Kim, Chiu, Guo, Rush, NeurIPS 2018): latent alignments.

Each target position $t$ has an alignment $z_t$, the source position that its word is read from.
Attention is its prior, and training maximises

$$\sum_t E_{q(z_t \mid x, y)} \log p(y_t \mid x, y_{<t}, z_t)
- \mathrm{KL}(q(z_t \mid x, y) \,\|\, p(z_t \mid x, y_{<t})) \le \log p(y \mid x).$$
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.attention.masking import log_normalize
from babn_paper.models.alignments import Aligned, enumerated, reinforced, relaxed
from babn_paper.models.lstm import BiLstm
from babn_paper.models.texts import Text
from babn_paper.models.translation_config import TranslationConfig
from babn_paper.models.translation_parts import TranslationOutput


def log_attention(
    query: Float[Tensor, "batch target dim"],
    key: Float[Tensor, "batch source dim"],
    seen: Bool[Tensor, "batch source"],
) -> Float[Tensor, "batch target source"]:
    """Log-probabilities of alignments, at least in single precision; zero at padding."""
    scores = query @ key.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return log_normalize(scores.unsqueeze(1), seen[:, None, None]).squeeze(1)


class InferenceNetwork(nn.Module):
    r"""The posterior of alignments, which knows the whole target.

    $$q(z_t = s \mid x, y) \propto \exp(\bar y_t^\top W \bar x_s),$$

    with $\bar x$ and $\bar y$ the states of BiLSTMs over source and target, which share nothing
    with the model but the vectors of words.
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
        """Log-probabilities of alignments from the words' vectors."""
        query = self.projection(self.target(target, target_text))
        return log_attention(query, self.source(source, source_text), source_text.seen)


def divergence(
    log_q: Float[Tensor, "batch target source"],
    log_p: Float[Tensor, "batch target source"],
    seen: Bool[Tensor, "batch source"],
) -> Float[Tensor, "batch target"]:
    r"""$\mathrm{KL}(q \| p) = \sum_s q_s (\log q_s - \log p_s)$ over source positions."""
    terms = log_q.exp() * (log_q - log_p)
    return terms.masked_fill(~seen.unsqueeze(1), 0.0).sum(-1)


def lower_bound(
    words: Aligned,
    log_q: Float[Tensor, "batch target source"],
    log_p: Float[Tensor, "batch target source"],
    config: TranslationConfig,
) -> TranslationOutput:
    """The negative bound, its terms, and logits with soft attention, which training only looks at.

    Args:
        words: Targets, given alignments.
        log_q: The posterior of alignments.
        log_p: Their prior.
        config: How the first term is computed, and the second one's weight.
    """
    kl = divergence(log_q, log_p, words.memory.text.seen)[words.counted].mean()
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
    """The bound's first term for each word, as the configuration computes it; zero at padding.

    Args:
        words: Targets, given alignments.
        log_q: The posterior of alignments.
        logits: With soft attention, for the baseline.
        config: How to compute it.
    """
    if config.attention == "va-enum":
        return enumerated(words, log_q)
    if config.estimator == "gumbel":
        return relaxed(words, log_q, config.gumbel_temperature, config.train_samples)
    baseline = torch.zeros_like(log_q[..., 0])
    if config.baseline:
        baseline = words.gold(logits)
    return reinforced(words, log_q, baseline, config.train_samples)
