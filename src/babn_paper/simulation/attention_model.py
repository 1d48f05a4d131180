r"""One layer of attention whose posterior can be integrated numerically.

$$S_j \sim \mathrm{Gamma}(\alpha_j, \beta), \qquad w = S / \textstyle\sum_j S_j, \qquad
t \sim N(w^\top v, \tau^2 I)$$

The weights of a few keys are Dirichlet distributed, and a product of Gauss-Jacobi rules over the
stick-breaking representation gives the evidence $p(t)$ to high precision.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from babn.distributions import Gamma
from babn.validation import check_at_least


@dataclass(frozen=True)
class AttentionModel:
    """A known prior over the weights of a few keys, and observations of the attended value.

    Attributes:
        log_alpha: Logarithms of the prior's shapes.
        values: One row for each key.
        deviation: Standard deviation of the observations around the attended value.
        beta: Rate of the prior, on which the normalised weights do not depend.
    """

    log_alpha: Float[Tensor, "key"]
    values: Float[Tensor, "key valuedim"]
    deviation: float
    beta: float = 1.0

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_at_least("deviation", self.deviation, 0.0, strictly=True)
        check_at_least("beta", self.beta, 0.0, strictly=True)

    def draw_weights(
        self, count: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "draw key"]:
        """Draws attention weights from the prior."""
        prior = Gamma(self.log_alpha.expand(count, -1), self.beta)
        return torch.softmax(prior.log_sample(generator), -1)

    def observe(
        self, weights: Float[Tensor, "draw key"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "draw valuedim"]:
        """Draws noisy observations of the attended values."""
        attended = weights @ self.values
        noise = torch.empty_like(attended).normal_(generator=generator)
        return attended + self.deviation * noise

    def log_likelihood(
        self, weights: Float[Tensor, "... key"], seen: Float[Tensor, "... valuedim"]
    ) -> Float[Tensor, "..."]:
        """Log density of observations, given weights."""
        z = (seen - weights @ self.values) / self.deviation
        constant = seen.shape[-1] * math.log(self.deviation * math.sqrt(2 * math.pi))
        return -0.5 * z.square().sum(-1) - constant

    def log_evidence(
        self, seen: Float[Tensor, "observation valuedim"], points: int = 48
    ) -> Float[Tensor, "observation"]:
        """Log density of observations with the weights integrated out."""
        weights, log_mass = self.quadrature(points)
        each = [torch.logsumexp(self.log_likelihood(weights, x) + log_mass, 0) for x in seen]
        return torch.stack(each)

    def quadrature(
        self, points: int = 48
    ) -> tuple[Float[Tensor, "point key"], Float[Tensor, "point"]]:
        """Returns points of the simplex and the logarithms of their masses under the prior.

        The rule is exact for polynomials of the weights up to degree `2 * points - 1`.
        """
        alpha = self.log_alpha.double().exp().tolist()
        weights, rest = torch.ones(1, 0, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        log_mass = torch.zeros(1, dtype=torch.float64)
        for j in range(len(alpha) - 1):
            nodes, masses = map(torch.from_numpy, beta_rule(alpha[j], sum(alpha[j + 1 :]), points))
            taken = rest[:, None] * nodes
            before = weights[:, None].expand(-1, points, -1)
            weights = torch.cat([before, taken[..., None]], -1).flatten(0, 1)
            log_mass = (log_mass[:, None] + masses.log()).flatten()
            rest = (rest[:, None] * (1 - nodes)).flatten()
        weights = torch.cat([weights, rest[:, None]], -1)
        return weights.to(self.values.dtype), log_mass.to(self.values.dtype)


def beta_rule(
    a: float, b: float, points: int
) -> tuple[Float[np.ndarray, "point"], Float[np.ndarray, "point"]]:
    r"""Returns nodes and masses of the Gauss rule for expectations under $\mathrm{Beta}(a, b)$.

    They follow from the eigenvalues of the Jacobi matrix (Golub & Welsch 1969,
    https://doi.org/10.1090/S0025-5718-69-99647-1).
    """
    p, q = b - 1.0, a - 1.0  # exponents of (1 - x) and (1 + x) on the interval from -1 to 1
    n = np.arange(1, points, dtype=float)
    total = 2 * n + p + q
    diagonal = np.concatenate([[(q - p) / (p + q + 2)], (q * q - p * p) / (total * (total + 2))])
    square = 4 * n * (n + p) * (n + q) / total**2
    # At n = 1 the factor n + p + q cancels with one in the denominator, even if both are zero.
    first = 1 / (total[:1] + 1)
    others = (n[1:] + p + q) / ((total[1:] + 1) * (total[1:] - 1))
    beside = np.sqrt(square * np.concatenate([first, others]))
    nodes, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return np.clip((1 + nodes) / 2, 0.0, 1.0), vectors[0] ** 2
