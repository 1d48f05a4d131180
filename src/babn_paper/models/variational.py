r"""Variational attention: latent alignments (Deng et al. 2018, https://arxiv.org/abs/1807.03756).

Each target position $t$ has a latent alignment $z_t$, the source position of its word. Attention
is its prior, and training maximises the evidence lower bound

$$\sum_t E_{q(z_t \mid x, y)} \log p(y_t \mid x, y_{<t}, z_t)
- \mathrm{KL}(q(z_t \mid x, y) \,\|\, p(z_t \mid x, y_{<t})) \le \log p(y \mid x).$$
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.attention.masking import log_normalize
from babn_paper.models.alignments import Aligned, enumerated, reinforced, relaxed
from babn_paper.models.texts import BiLstm, Text
from babn_paper.models.translation_parts import TranslationConfig, TranslationOutput


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
