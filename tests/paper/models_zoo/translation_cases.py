"""Tiny translation models, and sentences for them.

Weights are large, so that attention is far from uniform and a wrong mask or direction shows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pair_cases import enlarged
from torch import Tensor

import babn
from babn_paper.models import TranslationConfig, TranslationModel

PAD, BOS, EOS, IGNORED = 0, 2, 3, -100
VOCABULARY = 11
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "embedding_size": 5,
    "encoder_size": 4,
    "decoder_size": 6,
    "attention_size": 3,
    "dropout": 0.0,
}
SOURCES = [[4, 5, 6, 7, EOS], [8, 9, EOS], [10, 4, 4, EOS]]
TARGETS = [[5, 6, EOS], [7, 8, 9, 4, EOS], [EOS]]

Batch = dict[str, Tensor]

METHODS = {
    "softmax": babn.SoftmaxConfig(),
    "bam": babn.BamConfig(kl_reduction="sum"),
    "belief": babn.BeliefConfig.pairs(max_length=16, sigma=0.1, kl_reduction="sum"),
    "heads": babn.BeliefConfig.pairs(upward="heads", sigma=0.1, kl_reduction="sum"),
}
VARIATIONAL = ("va-enum", "va-sample")


def translator(**fields: Any) -> Any:
    """A model in evaluation mode and double precision, the same weights each time."""
    return enlarged(TranslationModel(TranslationConfig(**SIZES | fields)), 0.7).double().eval()


def converted(method: str, **fields: Any) -> Any:
    model = babn.convert(translator(**fields), METHODS[method])
    enlarged(model.babn, 0.3)
    return model


def padded(rows: Sequence[Sequence[int]], fill: int, extra: int = 0, left: bool = False) -> Tensor:
    length = max(len(row) for row in rows) + extra
    padding = [[fill] * (length - len(row)) for row in rows]
    pairs = zip(rows, padding, strict=True)
    return torch.tensor([[*more, *row] if left else [*row, *more] for row, more in pairs])


def sources(rows: Sequence[Sequence[int]], extra: int = 0, left: bool = False) -> Batch:
    """Sources padded with a word that means something."""
    seen = padded([[1] * len(row) for row in rows], 0, extra, left)
    return {"input_ids": padded(rows, 9, extra, left), "attention_mask": seen}


def batch(extra: int = 0, left: bool = False, rows: Sequence[int] = (0, 1, 2)) -> Batch:
    chosen = sources([SOURCES[i] for i in rows], extra, left)
    return {**chosen, "labels": padded([TARGETS[i] for i in rows], IGNORED, extra)}


def gold(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities of labels; zero at padding."""
    found = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return found.masked_fill(labels == IGNORED, 0.0)


def toy_task(count: int, seed: int = 0) -> Batch:
    """Sources of two to four words, and the same words from the last to the first as targets."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 5, (count,), generator=generator).tolist()
    rows = [torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    targets = [[*row[::-1], EOS] for row in rows]
    return {**sources([[*row, EOS] for row in rows]), "labels": padded(targets, IGNORED)}
