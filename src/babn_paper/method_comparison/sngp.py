r"""Spectral-normalised neural Gaussian process.

Liu et al., *Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via
Distance Awareness*, NeurIPS 2020, <https://arxiv.org/abs/2006.10108>. It is written out here since
laplace-torch, torch-uncertainty and GPyTorch do not have it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from babn.conversion.convert import convert
from babn.devices import device_of
from babn.prediction.features import features, find_head
from babn.prediction.result import Prediction
from babn_paper.method_comparison.basic_methods import sampled
from babn_paper.method_comparison.interface import TunedMethod, choose, labels_of
from babn_paper.method_comparison.random_attention import RandomAttention
from babn_paper.method_comparison.trained_models import Batches, Models, Variant

FACTORS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Mean-field factors that are tried."""


class RandomFeatureGP(nn.Module):
    r"""A Gaussian process over features as the last layer of a classifier.

    Random Fourier features $\phi(x) = \sqrt{2/D} \cos(W x / \ell + b)$ of the normalised input
    approximate a radial basis function kernel with length scale $\ell$. The weights of the logits
    are trained by gradient descent; `fit` gives their posterior covariance $(I +
    \Phi^\top \Phi / s)^{-1}$, with which logits are divided by $\sqrt{1 + \lambda v(x)}$, where
    $v(x)$ is the posterior variance.

    Args:
        inputs: Width of the input.
        classes: Number of classes.
        width: Number $D$ of random features.
        length_scale: $\ell$ in units of the square root of the input's width.
        noise: Observation noise $s$ of the posterior.

    Example:
        >>> layer = RandomFeatureGP(8, 3, width=64).eval()
        >>> layer.fit(layer.random_features(torch.randn(5, 8)))
        >>> layer.variance(torch.randn(2, 8)).shape
        torch.Size([2])
    """

    frequencies: Tensor
    phases: Tensor
    covariance: Tensor | None

    def __init__(
        self,
        inputs: int,
        classes: int,
        width: int = 1024,
        length_scale: float = 0.7,
        noise: float = 1.0,
    ) -> None:
        super().__init__()
        self.noise, self.factor = noise, 0.0
        scale = length_scale * math.sqrt(inputs)
        self.normalize = nn.LayerNorm(inputs, elementwise_affine=False)
        self.register_buffer("frequencies", torch.randn(width, inputs) / scale)
        self.register_buffer("phases", 2 * math.pi * torch.rand(width))
        self.register_buffer("covariance", None, persistent=False)
        self.outputs = nn.Linear(width, classes, bias=False)

    def random_features(self, x: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch width"]:
        r"""The features $\phi(x)$, whose inner products approximate the kernel."""
        with torch.autocast(x.device.type, enabled=False):  # angles need the digits
            normalized = self.normalize(x.to(self.phases))
            angles = nn.functional.linear(normalized, self.frequencies, self.phases)
        return math.sqrt(2 / len(self.phases)) * angles.cos()

    def fit(self, phi: Float[Tensor, "example width"]) -> None:
        """Computes the posterior covariance of the weights from the features of training data."""
        precision = torch.eye(phi.shape[-1], dtype=torch.float64)
        precision += phi.double().T @ phi.double() / self.noise
        self.covariance = torch.linalg.inv(precision).to(self.phases)

    def variance(self, x: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch"]:
        """The posterior variance, between 0 near the training data and 1 far from it."""
        phi = self.random_features(x)
        return ((phi if self.covariance is None else phi @ self.covariance) * phi).sum(-1)

    def forward(self, x: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch class"]:
        """Logits; in evaluation the mean-field approximation of their expected softmax."""
        # Scaled to unit variance, so that the weights learn at the pace of an ordinary layer.
        logits = self.outputs(math.sqrt(len(self.phases)) * self.random_features(x))
        if self.training or not self.factor:
            return logits
        return logits / (1 + self.factor * self.variance(x)).sqrt().unsqueeze(-1)


class BoundedSpectralNorm(nn.Module):
    """Divides a weight matrix by its largest singular value if that exceeds a bound.

    torch's own spectral normalisation always divides. One power iteration for each training step
    follows the singular vector.

    Args:
        weight: The weight.
        bound: Largest spectral norm.
    """

    vector: Tensor

    def __init__(self, weight: Float[Tensor, "out in"], bound: float = 0.95) -> None:
        super().__init__()
        self.bound = bound
        with torch.no_grad():
            vector = torch.linalg.svd(weight.double(), full_matrices=False)[0][:, 0]
        self.register_buffer("vector", vector.to(weight))

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """The bounded weight."""
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            right = nn.functional.normalize(weight.T @ self.vector, dim=0)
            if self.training:
                self.vector.copy_(nn.functional.normalize(weight @ right, dim=0))
            left = self.vector.clone()
        with torch.autocast(weight.device.type, enabled=False):
            norm = left @ weight @ right
        return weight / (norm / self.bound).clamp(min=1.0)


def add_sngp(
    model: nn.Module, normalized: str = "pooler", bound: float = 0.95, **settings: float
) -> nn.Module:
    """Replaces the last layer of a classifier by a Gaussian process, in place.

    Args:
        model: The classifier.
        normalized: Part of the names of the linear layers whose spectral norm is bounded; the
            authors bound the pooler of BERT.
        bound: Their largest spectral norm.
        **settings: Further arguments of `RandomFeatureGP`.
    """
    path, head = find_head(model)
    layer = RandomFeatureGP(head.in_features, head.out_features, **settings)  # type: ignore[arg-type]
    model.set_submodule(path, layer.to(device_of(model)))
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and normalized in name:
            norm = BoundedSpectralNorm(module.weight, bound)
            parametrize.register_parametrization(module, "weight", norm)
    return model


def fit_gp(model: nn.Module, batches: Batches) -> RandomFeatureGP:
    """Computes the posterior covariance of a trained model's Gaussian process, and returns it.

    Args:
        model: A model that `add_sngp` changed before training.
        batches: The training data.
    """
    layer = next(m for m in model.modules() if isinstance(m, RandomFeatureGP))
    with torch.no_grad():
        x = features(model, batches, layer)[-1].to(layer.phases)
        layer.fit(layer.random_features(x).cpu())
    return layer


SNGP = Variant("SNGP", add_sngp)


@dataclass(frozen=True)
class Sngp(TunedMethod):
    """A Gaussian process as last layer, with one forward pass.

    Attributes:
        variant: The training with the Gaussian process.
    """

    candidates: Sequence[float] = FACTORS
    variant: Variant = SNGP
    setting: ClassVar[str] = "mean-field factor"
    code: ClassVar[str] = """add_sngp(model)  # before training
fit_gp(model, training_batches).factor = factor
probs = model(**batch).logits.softmax(-1)"""

    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """Logits by a mean-field factor, after the covariance is computed."""
        model = models.get(self.variant, seed)
        return by_factor(model, fit_gp(model, models.problem.training))


def by_factor(model: nn.Module, layer: RandomFeatureGP) -> Callable[[float, Batches], Prediction]:
    """Predictions of a model by the mean-field factor of its Gaussian process."""

    def predict(factor: float, batches: Batches) -> Prediction:
        layer.factor = factor
        return sampled(model, batches)

    return predict


@dataclass(frozen=True)
class NoisySngp(RandomAttention):
    """A Gaussian process as last layer, and random attention below it, added after training."""

    variant: Variant = SNGP
    code: ClassVar[str] = """add_sngp(model)  # before training
fit_gp(model, training_batches).factor = factor
babn.convert(model)
babn.tune_noise(model, development_batches)
probs = babn.predict(model, batch).probs"""

    def model(self, models: Models, seed: int) -> nn.Module:
        """The trained model with its best factor, converted."""
        model, data = models.get(self.variant, seed), models.problem.development
        layer = fit_gp(model, models.problem.training)
        predict = by_factor(model, layer)
        trials = ((factor, predict(factor, data)) for factor in FACTORS)
        layer.factor, _ = choose(trials, labels_of(data), False)
        return convert(model)
