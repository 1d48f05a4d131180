"""ESIM against the equations of its paper, word by word."""

from typing import Any

import torch
from pair_cases import PAIRS, SEP, classifier, encoded
from torch import Tensor


def lstm(parameters: dict[str, Tensor], suffix: str, xs: list[Tensor]) -> list[Tensor]:
    """One direction of an LSTM."""
    w, u, b, c = (
        parameters[f"{name}_l0{suffix}"]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = cell = torch.zeros(u.shape[1], dtype=u.dtype)
    states = []
    for x in xs:
        i, f, g, o = (w @ x + b + u @ h + c).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        h = o.sigmoid() * cell.tanh()
        states.append(h)
    return states


def bilstm(module: Any, xs: list[Tensor]) -> list[Tensor]:
    parameters = dict(module.lstm.named_parameters())
    forward = lstm(parameters, "", xs)
    backward = lstm(parameters, "_reverse", xs[::-1])[::-1]
    return [torch.cat(pair) for pair in zip(forward, backward, strict=True)]


def aligned(x: Tensor, others: list[Tensor]) -> Tensor:
    weights = torch.stack([x @ y for y in others]).softmax(0)
    return sum(w * y for w, y in zip(weights, others, strict=True))


def linear(layer: Any, x: Tensor) -> Tensor:
    return layer.weight @ x + layer.bias


def by_hand(model: Any, premise: list[int], hypothesis: list[int]) -> Tensor:
    """Equations 1 to 20 of the paper, sequences only."""
    network = model.network
    embedding = network.embedding.weight
    a, b = (bilstm(network.encoder, [embedding[i] for i in ids]) for ids in (premise, hypothesis))
    pooled = []
    for own, other in ((a, b), (b, a)):
        enhanced = [torch.cat([x, y, x - y, x * y]) for x in own for y in [aligned(x, other)]]
        states = bilstm(
            network.composition, [linear(network.projection[0], m).clamp(min=0) for m in enhanced]
        )
        pooled += [sum(states) / len(states), torch.stack(states).amax(0)]
    return linear(model.classifier, linear(network.summary[0], torch.cat(pooled)).tanh())


def test_the_equations_of_the_paper() -> None:
    model = classifier("esim").double()
    expected = torch.stack([by_hand(model, [*a, SEP], [*b, SEP]) for a, b in PAIRS])

    torch.testing.assert_close(model(**encoded(PAIRS)).logits, expected)
    assert expected.std(0).min() > 1e-3


def test_the_sizes_of_the_paper() -> None:
    from babn_paper.models import EsimConfig, EsimForSequenceClassification

    model = EsimForSequenceClassification(EsimConfig(num_labels=3, vocab_size=9))
    network = model.network
    assert network.encoder.lstm.hidden_size == network.composition.lstm.hidden_size == 300
    assert network.projection[0].weight.shape == (300, 4 * 600)
    assert network.dropout.p == model.dropout.p == 0.5
    # Table 1 of the paper: 4.3 million parameters without the words.
    count = sum(p.numel() for name, p in model.named_parameters() if "embedding" not in name)
    assert 4_250_000 <= count <= 4_350_000
