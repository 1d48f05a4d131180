"""Laplace approximation of the last layer, by laplace-torch."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from babn.errors import import_extra
from babn.prediction.features import features, find_head
from babn.prediction.predict import following_seed
from babn.prediction.result import Prediction
from babn_paper.method_comparison.basic_methods import SAMPLES
from babn_paper.method_comparison.interface import TunedMethod, labels_of
from babn_paper.method_comparison.trained_models import Batches, Models

VARIANCES = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 10.0)
"""Prior variances of the weights that are tried; 0 keeps the trained weights."""


@dataclass(frozen=True)
class LastLayerLaplace(TunedMethod):
    """Gaussian posterior of the last layer's weights with Kronecker-factored curvature.

    [Daxberger et al. 2021](https://arxiv.org/abs/2106.14806). The layer is linear in its weights,
    so that samples of the weights are samples of the linearised predictive distribution. One
    forward pass gives the features that all samples share.

    Attributes:
        samples: Number of samples of the weights.
    """

    candidates: Sequence[float] = VARIANCES
    samples: int = SAMPLES
    setting: ClassVar[str] = "prior variance"
    code: ClassVar[str] = """la = laplace.Laplace(model, "classification", "last_layer", "kron")
la.fit(train_loader)
la.optimize_prior_precision(method="gridsearch", val_loader=development_loader)
probs = la(batch)"""

    def predictor(self, models: Models, seed: int) -> Callable[[float, Batches], Prediction]:
        """Samples of the last layer's outputs."""
        model = models.get(self.variant, seed)
        _, head = find_head(model)
        known: dict[int, tuple[Batches, Tensor]] = {}  # keeps batches, so that ids stay theirs

        def features_of(batches: Batches) -> Tensor:
            if id(batches) not in known:
                known[id(batches)] = batches, features(model, batches, head)[-1]
            return known[id(batches)][1]

        last = deepcopy(head).cpu()
        data = models.problem.training
        posterior = fit_laplace(last, features_of(data), labels_of(data))
        return lambda variance, batches: self._sampled(
            last, posterior, features_of(batches), variance
        )

    def _sampled(
        self, last: nn.Linear, posterior: Any, x: Float[Tensor, "example feature"], variance: float
    ) -> Prediction:
        if not variance:
            with torch.no_grad():
                return Prediction(last(x)[None])
        posterior.prior_precision = torch.tensor(1 / variance)
        drawn = posterior.sample(self.samples, generator=torch.Generator().manual_seed(0))
        weight, bias = drawn.split([last.weight.numel(), last.bias.numel()], 1)
        return Prediction(x @ weight.unflatten(1, last.weight.shape).mT + bias[:, None])


def fit_laplace(
    last: nn.Linear, x: Float[Tensor, "example feature"], labels: Tensor, batch_size: int = 1000
) -> Any:
    """The posterior of a linear layer's weights, as an object of laplace-torch.

    The curvature is the Fisher information with one label drawn for each example, which takes one
    backward pass instead of one for each class.
    """
    laplace = import_extra("laplace", "Laplace needs laplace-torch", "laplace")
    posterior = laplace.Laplace(
        last,
        "classification",
        subset_of_weights="all",
        hessian_structure="kron",
        backend_kwargs={"stochastic": True},
    )
    with following_seed(0, last):
        posterior.fit(DataLoader(TensorDataset(x, labels), batch_size=batch_size))
    return posterior
