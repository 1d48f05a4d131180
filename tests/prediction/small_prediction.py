"""Models and batches of the smallest size, for the tests of prediction."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)

import babn

WORDS = 40
DOUBTFUL = babn.BeliefConfig.pairs(max_length=16, rho=1.0)
"""Much noise, so that samples differ."""


def bert(
    kind: type[PreTrainedModel] = BertForSequenceClassification, **settings: Any
) -> PreTrainedModel:
    """A random BERT with weights large enough that attention matters."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "num_labels": 3,
        "initializer_range": 0.5,
    }
    return kind(BertConfig(**{**sizes, **settings}))


def bart() -> BartForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "d_model": 32, "max_position_embeddings": 32, "init_std": 0.3}
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": 2, "attention_heads": 4, "ffn_dim": 32}.items()
    }
    return BartForConditionalGeneration(BartConfig(**sizes, **sides))


def converted(config: babn.MethodConfig = DOUBTFUL, **settings: Any) -> PreTrainedModel:
    return babn.convert(bert(**settings), config).eval()


def words(rows: int = 4, length: int = 7) -> dict[str, Tensor]:
    """Texts of which the last is two words shorter."""
    generator = torch.Generator().manual_seed(1)
    seen = torch.ones(rows, length, dtype=torch.long)
    seen[-1, -2:] = 0
    ids = torch.randint(3, WORDS, (rows, length), generator=generator)
    return {"input_ids": ids, "attention_mask": seen}


class TorchClassifier(nn.Module):
    """A plain torch model whose output is a tensor or a tuple."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.as_tuple = as_tuple

    def forward(self, x: Tensor) -> Any:
        pooled, weights = self.attention(x, x, x)
        logits = self.head(pooled[:, 0])
        return (logits, weights) if self.as_tuple else logits
