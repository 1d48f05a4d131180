"""Tiny MCANs, and questions about images for them.

Weights are large, so that attention is far from uniform and a wrong mask or direction shows.
"""

from typing import Any

import torch
from pair_cases import enlarged
from torch import Tensor

import babn
from babn_paper.models import McanConfig, McanForQuestionAnswering

SIZES: dict[str, Any] = {
    "vocab_size": 30,
    "embedding_size": 5,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "fused_size": 10,
    "region_size": 6,
    "num_labels": 4,
    "dropout": 0.0,
}
WORDS = [5, 3, 1]
REGIONS = [4, 2, 6]

METHODS = {
    "softmax": babn.SoftmaxConfig(),
    "bam": babn.BamConfig(kl_reduction="sum"),
    "belief": babn.BeliefConfig.pairs(max_length=16, sigma=0.1, kl_reduction="sum"),
    "heads": babn.BeliefConfig.pairs(upward="heads", sigma=0.1, kl_reduction="sum"),
}


def model(**fields: Any) -> Any:
    """The same weights each time, in evaluation mode."""
    return enlarged(McanForQuestionAnswering(McanConfig(**SIZES | fields)), 0.4).eval()


def converted(method: str) -> Any:
    made = babn.convert(model(), METHODS[method])
    enlarged(made.babn, 0.3)
    return made


def batch(rows: list[int] | None = None, extra: int = 0) -> dict[str, Tensor]:
    """Questions and images of different lengths; padding holds words and features as well."""
    rows = list(range(len(WORDS))) if rows is None else rows
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 30, (3, 9), generator=generator)
    regions = torch.randn(3, 9, 6, generator=generator)
    words, places = (max(each[i] for i in rows) + extra for each in (WORDS, REGIONS))
    return {
        "input_ids": ids[rows, :words],
        "attention_mask": _seen([WORDS[i] for i in rows], words),
        "regions": regions[rows, :places],
        "region_mask": _seen([REGIONS[i] for i in rows], places),
    }


def labels() -> Tensor:
    return torch.tensor([[1.0, 0.3, 0, 0], [0, 0, 0, 0], [0, 0.6, 1.0, 0]])


def _seen(lengths: list[int], size: int) -> Tensor:
    return (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
