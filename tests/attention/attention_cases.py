"""Small attention calls and every kind of method, for the tests of this folder."""

import math
from typing import Any

import numpy as np
import torch
from scipy import integrate
from torch import Tensor

from babn import BamConfig, BeliefConfig, McDropoutConfig, MethodConfig, SoftmaxConfig
from babn.attention.inputs import Scores
from babn.attention.method import AttentionMethod, ChainShape
from babn.attention.noise_source import NoiseSource
from babn.attention.posterior import Posterior

HEADS, DIM = 2, 3
CONFIGS: dict[str, MethodConfig] = {
    "softmax": SoftmaxConfig(),
    "mc-dropout": McDropoutConfig(p=0.3),
    "bam-weibull": BamConfig(),
    "bam-lognormal": BamConfig(family="lognormal", prior="constant", scores="raw"),
    "belief-keys": BeliefConfig.pairs(rho=2.0, sigma=0.1, max_length=12),
    "belief-heads": BeliefConfig.pairs(rho=2.0, sigma=0.1, upward="heads"),
    "belief-per-key": BeliefConfig(),
    "belief-raw": BeliefConfig.pairs(
        rho=2.0, sigma=0.1, max_length=12, scores="raw", noise="exact"
    ),
}


def make_scores(
    keys: int = 5,
    queries: int = 4,
    batch: int = 2,
    mask: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Scores:
    """Random scores and keys that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(batch, HEADS, queries, keys, generator=generator, dtype=torch.float64)
    key = torch.randn(batch, HEADS, keys, DIM, generator=generator, dtype=torch.float64)
    return Scores(phi.to(dtype).requires_grad_(), mask, key.to(dtype).requires_grad_())


def repeated(scores: Scores, count: int) -> Scores:
    """One example many times, for as many samples."""
    size = (count, -1, -1, -1)
    return Scores(scores.phi.detach().expand(size), scores.mask, scores.key.detach().expand(size))


def make_method(
    config: MethodConfig,
    sets: tuple[int, ...] = (0, 1),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> AttentionMethod:
    """A method all of whose parameters are random, the biases too."""
    method = config.build(ChainShape(HEADS, DIM, sets)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return method


def posterior_of(method: AttentionMethod, scores: Scores, step: int = 0) -> Posterior:
    """The posterior of a step whose scores are also the chain's first."""
    return method(step, scores, method.upward(scores))


def readings(posterior: Posterior, seed: int = 0) -> dict[str, Tensor]:
    """Everything that a posterior says."""
    found = {
        "mean": posterior.mean_weights(),
        "sample": posterior.sample_weights(NoiseSource([seed])),
        "relative_std": posterior.relative_std(),
    }
    kl = posterior.kl()
    if kl is None:
        return found
    seen = found["mean"] > 0  # a KL of keys counts for the queries that see them
    return {**found, "kl": kl.expand_as(seen).where(seen, 0.0)}


def causal(size: int) -> Tensor:
    """A mask by which a query sees the keys up to its own index."""
    return torch.ones(1, 1, size, size, dtype=torch.bool).tril()


def padding(*lengths: int, keys: int, left: bool = False) -> Tensor:
    """A mask of examples with these numbers of keys."""
    places = torch.arange(keys)
    places = places.flip(0) if left else places
    return (places < torch.tensor(lengths)[:, None])[:, None, None]


def gradients(value: Tensor, module: torch.nn.Module) -> dict[str, Any]:
    """The gradient of every parameter, `None` where there is none."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return dict(zip(names, found, strict=True))


def array(x: Tensor) -> np.ndarray:
    """The values as numpy."""
    return x.detach().double().numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    """The textbook softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + exp(x)), as the paper writes it."""
    return np.log(1 + np.exp(x))


def linear_over_keys(weight: np.ndarray, bias: np.ndarray, h: np.ndarray) -> np.ndarray:
    """A linear layer over the keys, number by number, its weights cut to the keys there are."""
    out = np.zeros_like(h)
    for b, head, q, j in np.ndindex(h.shape):
        out[b, head, q, j] = bias[j] + sum(weight[j, i] * x for i, x in enumerate(h[b, head, q]))
    return out


def linear_over_heads(weight: np.ndarray, bias: np.ndarray, h: np.ndarray) -> np.ndarray:
    """A linear layer over the axis of heads, number by number."""
    out = np.zeros_like(h)
    for b, head, q, j in np.ndindex(h.shape):
        out[b, head, q, j] = bias[head] + sum(
            weight[head, i] * x for i, x in enumerate(h[b, :, q, j])
        )
    return out


LINEAR = {"keys": linear_over_keys, "heads": linear_over_heads}


def divergence_integral(q: Any, p: Any) -> float:
    """The KL of one scipy distribution from another, integrated over log s."""
    low, middle, high = (math.log(q.ppf(u)) for u in (1e-13, 0.5, 1 - 1e-13))

    def integrand(log_s: float) -> float:
        s = math.exp(log_s)
        return q.pdf(s) * s * (q.logpdf(s) - p.logpdf(s))

    return integrate.quad(integrand, low, high, points=[middle], limit=200)[0]
