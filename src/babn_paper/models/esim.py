"""ESIM, enhanced sequential inference (Chen et al. 2017, https://arxiv.org/abs/1609.06038)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn_paper.models.pairs import (
    PairConfig,
    PairForMultipleChoice,
    PairForSequenceClassification,
    WordEmbedding,
)
from babn_paper.models.texts import BiLstm, Side, Text


class EsimConfig(PairConfig):
    """Configuration of ESIM, by default with the sizes of the paper.

    Args:
        hidden_size: Size of each direction of the LSTMs, and of the other layers.
        dropout: Dropout rate before every layer.
        **kwargs: Fields of `PairConfig`.
    """

    model_type = "babn-esim"

    hidden_size: int = 300
    dropout: float = 0.5


class Esim(nn.Module):
    r"""Aligns words in context and composes the result with a second BiLSTM.

    With $\bar a$ and $\bar b$ the states of a BiLSTM over the words,

    $$e_{ij} = \bar a_i^\top \bar b_j, \qquad
    \tilde a_i = \sum_j \mathrm{softmax}_j(e_{ij})\, \bar b_j, \qquad
    m_{a,i} = F([\bar a_i;\ \tilde a_i;\ \bar a_i - \tilde a_i;\ \bar a_i \odot \tilde a_i]),$$

    and likewise for $b$. A second BiLSTM reads $m_a$ and $m_b$; the mean and the maximum of its
    states over each text go through a layer with tanh.
    """

    def __init__(self, config: EsimConfig) -> None:
        super().__init__()
        self.features = size = config.hidden_size
        self.embedding = WordEmbedding(config)
        self.encoder = BiLstm(config.embedding_size, size)
        self.projection = nn.Sequential(nn.Linear(8 * size, size), nn.ReLU())
        self.composition = BiLstm(size, size)
        self.summary = nn.Sequential(nn.Linear(8 * size, size), nn.Tanh())
        self.dropout = nn.Dropout(config.dropout)
        self.premise, self.hypothesis = Side(), Side()

    def forward(self, premise: Text, hypothesis: Text) -> Float[Tensor, "batch feature"]:
        """Returns a vector for each pair."""
        a, b = self._words(premise), self._words(hypothesis)
        to_b, to_a = self.premise.cross_attention, self.hypothesis.cross_attention
        aligned_a = to_b(a, b, b, premise.seen, hypothesis.seen)
        aligned_b = to_a(b, a, a, hypothesis.seen, premise.seen)
        pooled = [self._read(a, aligned_a, premise), self._read(b, aligned_b, hypothesis)]
        return self.summary(self.dropout(torch.cat(pooled, -1)))

    def _words(self, text: Text) -> Float[Tensor, "batch token size"]:
        return self.encoder(self.dropout(self.embedding(text.ids)), text)

    def _read(self, words: Tensor, aligned: Tensor, text: Text) -> Float[Tensor, "batch size"]:
        enhanced = torch.cat([words, aligned, words - aligned, words * aligned], -1)
        states = self.composition(self.dropout(self.projection(enhanced)), text)
        return torch.cat([_mean(states, text), _maximum(states, text)], -1)


def _mean(states: Tensor, text: Text) -> Float[Tensor, "batch size"]:
    seen = text.seen.unsqueeze(-1)
    return states.masked_fill(~seen, 0.0).sum(1) / seen.sum(1).clamp(min=1)


def _maximum(states: Tensor, text: Text) -> Float[Tensor, "batch size"]:
    seen = text.seen.unsqueeze(-1)
    highest = states.masked_fill(~seen, -torch.inf).amax(1)
    return highest.masked_fill(~seen.any(1), 0.0)


class EsimForSequenceClassification(PairForSequenceClassification):
    """ESIM that classifies pairs."""

    config_class = EsimConfig
    network_class = Esim


class EsimForMultipleChoice(PairForMultipleChoice):
    """ESIM that chooses among texts."""

    config_class = EsimConfig
    network_class = Esim
