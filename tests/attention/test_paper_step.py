"""One training step of `BeliefConfig.paper()`, recomputed from the formulas of the paper alone.

The model is two layers of attention on given states. The right side is plain torch: no function of
babn computes shape, scale, noise, prior, KL or loss there.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import babn
from babn.conversion.override import overriding
from babn.kernels.dispatch import why_not_method

BATCH, LENGTH, HEADS, SIZE, LAYERS, CLASSES = 2, 5, 2, 4, 2, 3
RHO, SIGMA, BETA, FLOOR, RATE = 1.5, 1e-6, 1.0, 0.1, 0.05


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HEADS * SIZE, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x, need_weights=False)[0]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HEADS * SIZE, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x.mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def prepared() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    x, labels = torch.randn(BATCH, LENGTH, HEADS * SIZE), torch.tensor([0, 2])
    config = babn.BeliefConfig.paper(max_length=LENGTH)
    model = babn.convert(Classifier(), config, {"x": x, "labels": labels})
    return model.double().train(), x.double(), labels


def split(values: Tensor) -> Tensor:
    """Heads of projected states: batch, head, position, size."""
    return values.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)


def negative_elbo(
    weights: dict[str, Tensor], x: Tensor, labels: Tensor, uniform: list[Tensor]
) -> Tensor:
    """-log p(y | x, S) + sum of KL(q || p), with S drawn from uniform numbers in (0.1, 0.9)."""

    def linear(name: str, values: Tensor) -> Tensor:
        return values @ weights[f"{name}.weight"].mT + weights[f"{name}.bias"]

    added = "babn.rules.0"
    h: list[Tensor] = []
    total_kl = x.new_zeros(())
    for layer in range(LAYERS):
        name = f"layers.{layer}.attention"
        projected = x @ weights[f"{name}.in_proj_weight"].mT + weights[f"{name}.in_proj_bias"]
        query, key, value = map(split, projected.chunk(3, -1))
        phi = query @ key.mT / math.sqrt(SIZE)
        if layer == 0:  # h[L+1] = softmax(phi[1]), h[l] = softplus(f3[l](h[l+1]))
            state = phi.exp() / phi.exp().sum(-1, keepdim=True)
            for own in reversed(range(LAYERS)):
                state = F.softplus(linear(f"{added}.posterior_nets.{own}.upward_map", state))
                h.insert(0, state)
        nets = f"{added}.posterior_nets.{layer}"
        k = RHO * F.softplus(linear(f"{nets}.shape_map", h[layer])) + phi.exp()
        k = k.clamp(min=FLOOR)
        mean = torch.lgamma(1 + 1 / k).exp()  # Gamma(1 + 1/k)
        lam = SIGMA * F.softplus(linear(f"{nets}.scale_map", h[layer])) + phi.exp() / mean
        s = lam * (-torch.log(1 - uniform[layer])) ** (1 / k)
        hidden = torch.relu(linear(f"{added}.prior_nets.{layer}.inner", key))
        scores = linear(f"{added}.prior_nets.{layer}.outer", hidden).squeeze(-1)
        alpha = scores.softmax(-1).unsqueeze(2)
        gamma = 0.5772156649015329
        kl = gamma * alpha / k - alpha * lam.log() + k.log() + BETA * lam * mean
        kl = kl - gamma - 1 - alpha * math.log(BETA) + torch.lgamma(alpha)
        total_kl = total_kl + kl.sum() / BATCH  # of an example
        context = (s / s.sum(-1, keepdim=True)) @ value
        x = x + linear(f"{name}.out_proj", context.transpose(1, 2).flatten(-2))
    logits = linear("head", x.mean(1))
    return -logits.log_softmax(-1)[range(BATCH), labels].mean() + total_kl


def drawn() -> list[Tensor]:
    """The uniform numbers that babn draws from torch's generator, one tensor for each layer."""
    shape = BATCH, HEADS, LENGTH, LENGTH
    return [0.1 + 0.8 * torch.rand(shape, dtype=torch.float64) for _ in range(LAYERS)]


def test_loss_and_new_weights_of_a_step_are_those_of_the_formulas() -> None:
    model, x, labels = prepared()
    torch.manual_seed(7)
    uniform = drawn()
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    expected = negative_elbo(weights, x, labels, uniform)
    gradients = torch.autograd.grad(expected, list(weights.values()))

    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss = model(x=x, labels=labels)["loss"]
    loss.backward()
    optimizer.step()

    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for (name, new), old, gradient in zip(
        model.named_parameters(), weights.values(), gradients, strict=True
    ):
        torch.testing.assert_close(new, old - RATE * gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("floor", [0.1, 0.5])
def test_the_floor_of_the_shape_can_be_set(floor: float) -> None:
    torch.manual_seed(0)
    config = babn.BeliefConfig.paper(rho=0.0, smallest_k=floor, max_length=LENGTH)
    assert (why_not_method(config) is None) == (floor == 0.1)
    x, labels = torch.randn(BATCH, LENGTH, HEADS * SIZE), torch.tensor([0, 2])
    model = babn.convert(Classifier(), config, {"x": x, "labels": labels}).train()
    posteriors: list[Any] = []
    with torch.no_grad(), overriding(model, posteriors=posteriors):
        model(x=8 * x, labels=labels)
    assert min(float(each.variables.k.min()) for _, each in posteriors) == pytest.approx(floor)
