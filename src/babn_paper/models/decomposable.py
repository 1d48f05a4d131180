"""Decomposable attention (Parikh et al. 2016, https://arxiv.org/abs/1606.01933)."""

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


class DecomposableConfig(PairConfig):
    """Configuration of decomposable attention, by default with the sizes of the paper.

    Args:
        hidden_size: Size of all layers.
        dropout: Dropout rate before every layer.
        **kwargs: Fields of `PairConfig`.
    """

    model_type = "babn-decomposable"

    hidden_size: int = 200
    dropout: float = 0.2


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


class Decomposable(nn.Module):
    r"""Aligns, compares and sums words.

    With projected words $a_i$ and $b_j$,

    $$e_{ij} = F(a_i)^\top F(b_j), \quad \beta_i = \sum_j \mathrm{softmax}_j(e_{ij})\, b_j,
    \quad \alpha_j = \sum_i \mathrm{softmax}_i(e_{ij})\, a_i,$$

    $$v_1 = \sum_i G([a_i, \beta_i]), \quad v_2 = \sum_j G([b_j, \alpha_j]), \quad H([v_1, v_2]).$$
    """

    def __init__(self, config: DecomposableConfig) -> None:
        super().__init__()
        self.features = size = config.hidden_size
        self.embedding = WordEmbedding(config)
        self.projection = nn.Linear(config.embedding_size, size, bias=False)
        self.attend = FeedForward(size, config)
        self.compare = FeedForward(2 * size, config)
        self.aggregate = FeedForward(2 * size, config)
        self.premise, self.hypothesis = Side(), Side()

    def forward(self, premise: Text, hypothesis: Text) -> Float[Tensor, "batch feature"]:
        """Returns a vector for each pair."""
        a, b = (self.projection(self.embedding(text.ids)) for text in (premise, hypothesis))
        query_a, query_b = self.attend(a), self.attend(b)
        to_b, to_a = self.premise.cross_attention, self.hypothesis.cross_attention
        beta = to_b(query_a, query_b, b, premise.seen, hypothesis.seen)
        alpha = to_a(query_b, query_a, a, hypothesis.seen, premise.seen)
        sums = [self._compared(a, beta, premise), self._compared(b, alpha, hypothesis)]
        return self.aggregate(torch.cat(sums, -1))

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
