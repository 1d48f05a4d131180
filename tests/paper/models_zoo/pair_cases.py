"""Tiny models for two texts, and pairs for them.

Weights are large, so that attention is far from uniform and a wrong mask or direction shows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import babn
from babn_paper.models import (
    DecomposableConfig,
    DecomposableForMultipleChoice,
    DecomposableForSequenceClassification,
    EsimConfig,
    EsimForMultipleChoice,
    EsimForSequenceClassification,
)

Pair = tuple[Sequence[int], Sequence[int]]
Batch = dict[str, Tensor]

PAD, CLS, SEP = 0, 2, 3
VOCABULARY = 40
SIZES = {"vocab_size": VOCABULARY, "embedding_size": 5, "hidden_size": 6, "num_labels": 3}

PAIRS: list[Pair] = [
    ([7, 8, 9, 10, 11], [12, 13]),  # both texts become equally long in a batch of all pairs
    ([14, 15, 16], [17, 18, 19, 20, 21]),
    ([22], [23, 24, 25]),
]

CONFIGS: dict[str, Any] = {
    "decomposable": lambda **kw: DecomposableConfig(**SIZES | kw),
    "esim": lambda **kw: EsimConfig(**SIZES | kw),
}
KINDS = tuple(CONFIGS)

METHODS = {
    "softmax": babn.SoftmaxConfig(),
    "bam": babn.BamConfig(kl_reduction="sum"),
    "belief": babn.BeliefConfig.pairs(max_length=16, sigma=0.1, kl_reduction="sum"),
    "heads": babn.BeliefConfig.pairs(upward="heads", sigma=0.1, kl_reduction="sum"),
}


def classifier(kind: str, **fields: Any) -> Any:
    """A classifier of pairs in evaluation mode, the same weights each time."""
    own = EsimForSequenceClassification if kind == "esim" else DecomposableForSequenceClassification
    return enlarged(own(CONFIGS[kind](**fields))).eval()


def chooser(kind: str, **fields: Any) -> Any:
    own = EsimForMultipleChoice if kind == "esim" else DecomposableForMultipleChoice
    return enlarged(own(CONFIGS[kind](**fields))).eval()


def enlarged(model: nn.Module, std: float = 0.5) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.empty(parameter.shape).normal_(0, std, generator=generator))
    return model


def converted(kind: str, method: str) -> Any:
    model = babn.convert(classifier(kind), METHODS[method])
    enlarged(model.babn, 0.3)
    return model


def encoded(pairs: Sequence[Pair], extra: int = 0, left: bool = False) -> Batch:
    """`[CLS] premise [SEP] hypothesis [SEP]`, padded on one side with a word that means something.

    Args:
        pairs: Words of each pair.
        extra: Padding of the longest.
        left: The side of padding.
    """
    rows = [([CLS, *a, SEP], [*b, SEP]) for a, b in pairs]
    length = max(len(a) + len(b) for a, b in rows) + extra
    batch: dict[str, list[list[int]]] = {}
    for a, b in rows:
        padding = length - len(a) - len(b)
        for name, values, fill in (
            ("input_ids", a + b, 30),
            ("attention_mask", [1] * len(a + b), 0),
            ("token_type_ids", [0] * len(a) + [1] * len(b), 1),
        ):
            more = [fill] * padding
            batch.setdefault(name, []).append(more + values if left else values + more)
    return {name: torch.tensor(rows) for name, rows in batch.items()}


def toy_pairs(count: int, seed: int = 0) -> tuple[Batch, Tensor]:
    """Whether the word of a hypothesis stands in its premise."""
    generator = torch.Generator().manual_seed(seed)
    premises = torch.stack(
        [torch.randperm(VOCABULARY - 4, generator=generator)[:5] + 4 for _ in range(count)]
    )
    labels = torch.arange(count) % 2
    absent = torch.randint(4, VOCABULARY, (count,), generator=generator)
    for i in range(count):
        while absent[i] in premises[i]:
            absent[i] = 4 + (absent[i] - 3) % (VOCABULARY - 4)
    words = torch.where(labels == 1, premises[:, 2], absent)
    pairs = [(a.tolist(), [int(b)]) for a, b in zip(premises, words, strict=True)]
    return encoded(pairs), labels
