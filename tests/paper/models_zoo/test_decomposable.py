"""Decomposable attention against the equations of its paper, word by word."""

from typing import Any

import torch
from pair_cases import PAIRS, SEP, classifier, encoded
from torch import Tensor


def feed_forward(layers: Any, x: Tensor) -> Tensor:
    for linear in (layers[1], layers[4]):
        x = (linear.weight @ x + linear.bias).clamp(min=0)
    return x


def softmax(numbers: list[Tensor]) -> list[Tensor]:
    total = sum(x.exp() for x in numbers)
    return [x.exp() / total for x in numbers]


def mean_of(weights: list[Tensor], vectors: list[Tensor]) -> Tensor:
    return sum(w * v for w, v in zip(weights, vectors, strict=True))


def words(network: Any, ids: list[int]) -> list[Tensor]:
    return [network.projection.weight @ network.embedding.weight[i] for i in ids]


def by_hand(model: Any, premise: list[int], hypothesis: list[int]) -> Tensor:
    """Equations 1 to 7 of the paper."""
    network = model.network
    a, b = words(network, premise), words(network, hypothesis)
    e = [[feed_forward(network.attend, x) @ feed_forward(network.attend, y) for y in b] for x in a]
    beta = [mean_of(softmax(row), b) for row in e]
    alpha = [mean_of(softmax([row[j] for row in e]), a) for j in range(len(b))]
    pairs = zip(a, beta, strict=True), zip(b, alpha, strict=True)
    v = [sum(feed_forward(network.compare, torch.cat(pair)) for pair in side) for side in pairs]
    h = feed_forward(network.aggregate, torch.cat(v))
    return model.classifier.weight @ h + model.classifier.bias


def test_the_equations_of_the_paper() -> None:
    model = classifier("decomposable").double()
    pairs = [*PAIRS, (list(range(4, 18)), [5, 6])]
    expected = torch.stack([by_hand(model, [*a, SEP], [*b, SEP]) for a, b in pairs])

    torch.testing.assert_close(model(**encoded(pairs)).logits, expected)
    assert expected.std(0).min() > 1e-3


def test_the_sizes_of_the_paper() -> None:
    from babn_paper.models import DecomposableConfig, DecomposableForSequenceClassification

    model = DecomposableForSequenceClassification(DecomposableConfig(num_labels=3, vocab_size=9))
    network = model.network
    assert network.projection.weight.shape == (200, 300)
    assert network.compare[1].weight.shape == (200, 400)
    assert network.attend[0].p == 0.2
    # Table 1 of the paper: 382 thousand parameters without the words.
    count = sum(p.numel() for name, p in model.named_parameters() if "embedding" not in name)
    assert 380_000 <= count <= 385_000
