"""Decomposable attention (Parikh et al. 2016, https://arxiv.org/abs/1606.01933)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from babn_paper.models.pairs import (
    PairConfig,
    PairForMultipleChoice,
    PairForSequenceClassification,
    WordEmbedding,
)
from babn_paper.models.texts import Side, Text

FARTHEST = 10
"""Maximum distance of two words with a bias of their own in attention within a text."""


class DecomposableConfig(PairConfig):
    """Configuration of decomposable attention, by default with the sizes of the paper.

    Args:
        intra_attention: Whether each text first attends to itself.
        hidden_size: Size of all layers.
        dropout: Dropout rate before every layer.
        **kwargs: Fields of `PairConfig`.
    """

    model_type = "babn-decomposable"

    def __init__(
        self,
        intra_attention: bool = False,
        hidden_size: int = 200,
        dropout: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(hidden_size=hidden_size, dropout=dropout, **kwargs)
        self.intra_attention = intra_attention


class FeedForward(nn.Sequential):
    """Two layers with ReLU, each preceded by dropout."""

    def __init__(self, inputs: int, config: PairConfig) -> None:
        size = config.hidden_size
        super().__init__(
            nn.Dropout(config.dropout),
            nn.Linear(inputs, size),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(size, size),
            nn.ReLU(),
        )


class Distances(nn.Module):
    """One bias for each distance from -`FARTHEST` to `FARTHEST`, and one for all larger ones."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Embedding(2 * FARTHEST + 2, 1)

    def forward(self, length: int) -> Float[Tensor, "{length} {length}"]:
        """Returns the biases between the words of a text."""
        places = torch.arange(length, device=self.biases.weight.device)
        apart = places[:, None] - places
        numbers = (apart + FARTHEST).where(apart.abs() <= FARTHEST, 2 * FARTHEST + 1)
        return self.biases(numbers).squeeze(-1)


class Decomposable(nn.Module):
    r"""Aligns, compares and sums words.

    With projected words $a_i$ and $b_j$,

    $$e_{ij} = F(a_i)^\top F(b_j), \quad \beta_i = \sum_j \mathrm{softmax}_j(e_{ij})\, b_j,
    \quad \alpha_j = \sum_i \mathrm{softmax}_i(e_{ij})\, a_i,$$

    $$v_1 = \sum_i G([a_i, \beta_i]), \quad v_2 = \sum_j G([b_j, \alpha_j]), \quad H([v_1, v_2]).$$

    With attention within texts, $a_i$ is replaced by $[a_i, a'_i]$, where
    $a'_i = \sum_j \mathrm{softmax}_j(F'(a_i)^\top F'(a_j) + d_{i-j})\, a_j$.
    """

    def __init__(self, config: DecomposableConfig) -> None:
        super().__init__()
        self.features = size = config.hidden_size
        within = config.intra_attention
        width = size * (1 + within)
        self.embedding = WordEmbedding(config)
        self.projection = nn.Linear(config.embedding_size, size, bias=False)
        self.intra = FeedForward(size, config) if within else None
        self.distances = Distances() if within else None
        self.attend = FeedForward(width, config)
        self.compare = FeedForward(2 * width, config)
        self.aggregate = FeedForward(2 * size, config)
        self.premise, self.hypothesis = Side(within), Side(within)

    def forward(self, premise: Text, hypothesis: Text) -> Float[Tensor, "batch feature"]:
        """Returns a vector for each pair."""
        a, b = self._words(self.premise, premise), self._words(self.hypothesis, hypothesis)
        query_a, query_b = self.attend(a), self.attend(b)
        to_b, to_a = self.premise.cross_attention, self.hypothesis.cross_attention
        beta = to_b(query_a, query_b, b, premise.seen, hypothesis.seen)
        alpha = to_a(query_b, query_a, a, hypothesis.seen, premise.seen)
        sums = [self._compared(a, beta, premise), self._compared(b, alpha, hypothesis)]
        return self.aggregate(torch.cat(sums, -1))

    def _words(self, side: Side, text: Text) -> Float[Tensor, "batch token width"]:
        words = self.projection(self.embedding(text.ids))
        if self.intra is None or self.distances is None or side.self_attention is None:
            return words
        query, bias = self.intra(words), self.distances(words.shape[1])
        around = side.self_attention(query, query, words, text.seen, text.seen, bias)
        return torch.cat([words, around], -1)

    def _compared(self, words: Tensor, other: Tensor, text: Text) -> Float[Tensor, "batch size"]:
        compared = self.compare(torch.cat([words, other], -1))
        return compared.masked_fill(~text.seen.unsqueeze(-1), 0.0).sum(1)


class DecomposableForSequenceClassification(PairForSequenceClassification):
    """Decomposable attention that classifies pairs."""

    config_class = DecomposableConfig
    network_class = Decomposable


class DecomposableForMultipleChoice(PairForMultipleChoice):
    """Decomposable attention that chooses among texts."""

    config_class = DecomposableConfig
    network_class = Decomposable
