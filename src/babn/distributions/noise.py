r"""Standard noise of the log-location-scale families, and its exponential moments.

Weibull and lognormal variables have one form in log space,

$$\log s = \mathrm{loc} + \mathrm{scale} \cdot g,$$

with $g$ the log of a standard exponential (Weibull, scale $1/k$) or a standard normal (lognormal).
Mean and variance follow from the moment function $m(t) = E[e^{t g}]$: the mean is
$e^{loc} m(scale)$, and std/mean depends on the scale alone.

Every noise below is consistent: its samples have the moments that its methods return. The exception
is [`TruncatedPaper`][babn.distributions.noise.TruncatedPaper], kept to reproduce the paper.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from babn.distributions.special import Floats, finite, polynomial

NoiseName = Literal["exact", "truncated", "truncated-paper"]
Family = Literal["weibull", "lognormal"]

LOW, HIGH = 0.1, 0.9
"""The interval of the uniform numbers of truncated noise."""

Generators = torch.Generator | Sequence[torch.Generator] | None
"""A generator for all draws, one for each block along the first axis, or torch's global one."""


def filled(
    like: Floats, generator: Generators, fill: Callable[[Tensor, torch.Generator | None], Any]
) -> Floats:
    """A new tensor like `like` that `fill` fills in place, block by block."""
    draws = torch.empty_like(like, memory_format=torch.contiguous_format)
    if generator is None or isinstance(generator, torch.Generator):
        fill(draws, generator)
        return draws
    for block, each in zip(draws.chunk(len(generator)), generator, strict=True):
        fill(block, each)
    return draws


@runtime_checkable
class Noise(Protocol):
    """A standard variable $g$ with its moments.

    Example:
        >>> isinstance(noise_for("weibull", "exact"), Noise)
        True
    """

    def sample(self, like: Floats, generator: Generators = None) -> Floats:
        """Draws of $g$ with the shape, dtype and device of `like`.

        Several generators draw for equal blocks along the first axis.
        """
        ...

    def from_uniform(self, u: Floats) -> Floats:
        """Draws of $g$ from uniform numbers between 0 and 1, by its quantile function."""
        ...

    def log_moment(self, scale: Floats) -> Floats:
        r"""$\log E[e^{t g}]$ at $t$ = `scale`."""
        ...

    def relative_std(self, scale: Floats) -> Floats:
        r"""Standard deviation of $e^{t g}$ divided by its mean, $\sqrt{m(2t) / m(t)^2 - 1}$."""
        # In float32 the two terms cancel for small scales (large k).
        wide = scale.double().clamp(max=1e6)  # beyond it the ratio overflows
        log_ratio = self.log_moment(2 * wide) - 2 * self.log_moment(wide)
        largest = min(2 * math.log(torch.finfo(scale.dtype).max) - 1e-3, 700.0)
        return log_ratio.clamp(0, largest).expm1().sqrt().to(scale.dtype)


class LogExponential(Noise):
    r"""The log of a standard exponential variable, the exact noise of a Weibull distribution.

    $$g = \log(-\log(1 - \epsilon)), \quad \epsilon \sim U(0, 1), \qquad E[e^{tg}] = \Gamma(1 + t)$$

    Example:
        >>> LogExponential().log_moment(torch.tensor(2.0)).exp()
        tensor(2.)
    """

    def sample(self, like: Tensor, generator: Generators = None) -> Tensor:
        """Draws with the shape of `like`."""
        draws = filled(like, generator, lambda x, g: x.exponential_(generator=g))
        return draws.clamp_(min=torch.finfo(draws.dtype).tiny).log_()

    def from_uniform(self, u: Tensor) -> Tensor:
        """The quantiles at `u`."""
        return log_exponential_quantile(inside(u))

    def log_moment(self, scale: Tensor) -> Tensor:
        """The log moment at `scale`."""
        return torch.lgamma(1 + scale)


class StandardNormal(Noise):
    r"""A standard normal variable, the exact noise of a lognormal distribution.

    $$g \sim N(0, 1), \qquad E[e^{tg}] = e^{t^2/2}$$

    Example:
        >>> StandardNormal().log_moment(torch.tensor(2.0))
        tensor(2.)
    """

    def sample(self, like: Tensor, generator: Generators = None) -> Tensor:
        """Draws with the shape of `like`."""
        return filled(like, generator, lambda x, g: x.normal_(generator=g))

    def from_uniform(self, u: Tensor) -> Tensor:
        """The quantiles at `u`."""
        return torch.special.ndtri(inside(u))

    def log_moment(self, scale: Tensor) -> Tensor:
        """The log moment at `scale`."""
        return finite(0.5 * scale * scale)


def inside(u: Tensor) -> Tensor:
    """`u` without 0 and 1, which rounding may produce and for which quantiles are infinite."""
    kind = torch.finfo(u.dtype)
    return u.clamp(kind.tiny, 1 - kind.eps / 2)


def log_exponential_quantile(u: Tensor) -> Tensor:
    """Quantile function of the log of a standard exponential."""
    return torch.log(-torch.log1p(-u))


_BEND = 3.0  # the scale at which the variable x of the series is zero
_DEGREE = 16


def _interpolant(x: np.ndarray, values: np.ndarray) -> list[float]:
    """Coefficients of the polynomial through values at Chebyshev points, the constant first."""
    series = np.polynomial.chebyshev.chebfit(x, values, _DEGREE)
    powers: list[float] = np.polynomial.chebyshev.cheb2poly(series).tolist()
    return powers


class Truncated:
    r"""Noise from uniform numbers on (0.1, 0.9), with moments of its own.

    $$g = Q(\epsilon), \quad \epsilon \sim U(0.1, 0.9), \qquad
    m(t) = \frac{1}{0.8}\int_{0.1}^{0.9} e^{t Q(u)} du$$

    The moment has no short closed form, but $\log m(t) - t\,Q(0.9) + \log(1 + t)$ is bounded and
    smooth in $x = (t - 3) / (t + 3)$. Its Chebyshev interpolant of degree 16 in $x$ has an error
    of at most 2e-7 for every $t \ge 0$. Its coefficients as a polynomial in $x$ are below one, so
    that Horner's rule is accurate in float32. The same holds for
    $\log(r / t) + \frac12\log(1 + t)$ with $r$ the ratio of standard deviation to mean.

    Args:
        quantile: $Q$.

    Example:
        >>> noise = Truncated(log_exponential_quantile)
        >>> noise.log_moment(torch.tensor(1.0)).exp()  # 1 without truncation
        tensor(0.8307)
    """

    def __init__(self, quantile: Callable[[Tensor], Tensor]) -> None:
        self.quantile = quantile
        self.largest = float(quantile(torch.tensor(HIGH, dtype=torch.float64)))
        # Gauss-Legendre points, denser near the largest noise, which dominates high moments.
        y, weights = np.polynomial.legendre.leggauss(128)
        y, weights = (y + 1) / 2, weights / 2 * 3 * ((y + 1) / 2) ** 2
        nodes = quantile(torch.from_numpy(HIGH - (HIGH - LOW) * y**3)).numpy()
        x = np.polynomial.chebyshev.chebpts1(_DEGREE + 1)
        scale = _BEND * (1 + x) / (1 - x)
        powers = np.multiply.outer(scale, nodes - self.largest)
        log_moment = np.log(np.exp(powers) @ weights)
        self.series = _interpolant(x, log_moment + np.log1p(scale))
        # The mean square of (s / mean - 1), node by node: no cancellation at small scales.
        variance = np.expm1(powers - log_moment[:, None]) ** 2 @ weights
        spread = 0.5 * np.log(variance) - np.log(scale) + 0.5 * np.log1p(scale)
        self.spread_series = _interpolant(x, spread)

    def sample(self, like: Tensor, generator: Generators = None) -> Tensor:
        """Draws with the shape of `like`."""
        draws = filled(like, generator, lambda x, g: x.uniform_(LOW, HIGH, generator=g))
        return self.quantile(draws)

    def from_uniform(self, u: Tensor) -> Tensor:
        """The quantiles at `u` mapped to (0.1, 0.9)."""
        return self.quantile(LOW + (HIGH - LOW) * u)

    def log_moment(self, scale: Tensor) -> Tensor:
        """The log moment at `scale`."""
        return cast(Tensor, _TruncatedLogMoment.apply(scale, self.largest, self.series))

    def relative_std(self, scale: Tensor) -> Tensor:
        """Std/mean at `scale`."""
        bounded = polynomial(self.spread_series, (scale - _BEND) / (scale + _BEND))
        return scale * (1 + scale).rsqrt() * bounded.exp()


class TruncatedPaper:
    r"""Truncated samples with the moments of the exact noise, which are inconsistent.

    $$g = Q(\epsilon), \quad \epsilon \sim U(0.1, 0.9), \qquad m(t) = \int_0^1 e^{t Q(u)} du$$

    As in Section 3.3 of [Zhang et al. 2021](https://arxiv.org/abs/2106.05251). Training learns to
    use the gap between the two moments, which the posterior mean ignores.

    Args:
        exact: The noise with the moments.
        truncated: The noise with the samples.

    Example:
        >>> noise = TruncatedPaper(LogExponential(), Truncated(log_exponential_quantile))
        >>> noise.log_moment(torch.tensor(1.0)).exp()
        tensor(1.)
    """

    def __init__(self, exact: Noise, truncated: Noise) -> None:
        self.sample, self.from_uniform = truncated.sample, truncated.from_uniform
        self.log_moment = exact.log_moment
        self.relative_std = exact.relative_std


class _TruncatedLogMoment(torch.autograd.Function):
    """Saves one tensor instead of one for each term of the series."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, largest: float, series: Sequence[float]) -> Tensor:
        ctx.save_for_backward(scale)
        ctx.largest, ctx.series = largest, series
        bounded = polynomial(series, (scale - _BEND) / (scale + _BEND))
        return bounded.sub_(scale.log1p()).add_(scale, alpha=largest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (scale,) = ctx.saved_tensors
        derivative = [power * c for power, c in enumerate(ctx.series)][1:]
        slope = polynomial(derivative, (scale - _BEND) / (scale + _BEND))
        slope.mul_(2 * _BEND / (scale + _BEND).square())
        slope.sub_(1 / (1 + scale)).add_(ctx.largest)
        return slope.mul_(grad), None, None


_EXACT: dict[Family, Noise] = {"weibull": LogExponential(), "lognormal": StandardNormal()}
_TRUNCATED: dict[Family, Noise] = {
    "weibull": Truncated(log_exponential_quantile),
    "lognormal": Truncated(torch.special.ndtri),
}
_NOISES: dict[NoiseName, dict[Family, Noise]] = {
    "exact": _EXACT,
    "truncated": _TRUNCATED,
    "truncated-paper": {f: TruncatedPaper(_EXACT[f], _TRUNCATED[f]) for f in _EXACT},
}


def noise_for(family: Family, name: NoiseName) -> Noise:
    """The noise called `name` for a family of distributions."""
    return _NOISES[name][family]
