"""Plots the effect of the settings of BABN: python tools/plot_settings.py [--out docs/figures].

All curves are analytic, from `babn.distributions`; nothing is trained. Takes seconds.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.ticker import FuncFormatter, NullFormatter

from babn import BeliefConfig, KLAnnealing, plots
from babn.attention.method import KL_WEIGHT
from babn.distributions import Gamma, Weibull, noise_for, weibull_gamma
from babn.plots.figures import drawing, line_look, new_figure

SHAPES = torch.logspace(-0.5, 2, 200)
NOISES = ("exact", "truncated")


def lines(panel: Any, curves: dict[str, tuple[torch.Tensor, torch.Tensor]], **legend: Any) -> None:
    """Curves of different looks with a legend."""
    for index, (name, (x, y)) in enumerate(curves.items()):
        panel.plot(x, y, label=name, **line_look(index))
    panel.legend(**legend)


def logarithmic(*axes: Any) -> None:
    """Axes with powers of ten, written as plain numbers."""
    for axis in axes:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


@drawing
def spread() -> Any:
    """Std/mean over k, at the start over rho, and the densities behind it."""
    figure = new_figure((plots.DOUBLE, 2.3))
    by_shape, by_rho, density = figure.subplots(1, 3)
    lines(
        by_shape,
        {n: (SHAPES, noise_for("weibull", n).relative_std(1 / SHAPES)) for n in NOISES},
    )
    by_shape.set(xlabel="shape k", ylabel="std / mean of a weight")
    logarithmic(by_shape.xaxis, by_shape.yaxis)
    rho = torch.linspace(0.2, 30, 200)
    started = rho * math.log(2)  # softplus of a map that gives zero
    lines(by_rho, {n: (rho, noise_for("weibull", n).relative_std(1 / started)) for n in NOISES})
    by_rho.set(xlabel="rho", ylabel="std / mean before training", ylim=(0, 1.2))
    by_rho.axvline(BeliefConfig().rho, color="0.7", linewidth=0.8)
    weight = torch.linspace(0.01, 3, 300)
    curves = {}
    for k in (0.7, 1.0, 2.0, 5.0, 12.0):
        shape = torch.tensor(k)
        q = Weibull(shape, -torch.lgamma(1 + 1 / shape))  # of mean one
        curves[f"k = {k:g}"] = weight, q.log_prob(weight.log()).exp()
    lines(density, curves)
    density.set(xlabel="weight / its mean", ylabel="density", ylim=(0, 4.5))
    return figure


def kl(k: torch.Tensor, mean: float, alpha: float, beta: float) -> torch.Tensor:
    """KL of a Weibull posterior with this shape and mean from a gamma prior."""
    posterior = Weibull(k, math.log(mean) - torch.lgamma(1 + 1 / k))
    return weibull_gamma(posterior, Gamma(torch.tensor(alpha).log(), beta))


@drawing
def priors() -> Any:
    """The KL over k for several alpha, and over the mean weight for several beta."""
    figure = new_figure((plots.DOUBLE, 2.3))
    by_shape, by_mean = figure.subplots(1, 2)
    lines(
        by_shape,
        {f"alpha = {a:g}": (SHAPES, kl(SHAPES, 0.1, a, 1.0)) for a in (0.02, 0.1, 0.5)},
    )
    by_shape.set(xlabel="shape k (mean weight 0.1, beta 1)", ylabel="KL")
    logarithmic(by_shape.xaxis)
    means = torch.logspace(-3, 0, 200)
    curves = {}
    for beta in (0.1, 1.0, 10.0):
        found = [kl(torch.tensor(8.0), float(m), 0.1, beta) for m in means]
        curves[f"beta = {beta:g}"] = means, torch.stack(found)
    lines(by_mean, curves)
    by_mean.set(xlabel="mean weight (k 8, alpha 0.1)", ylabel="KL")
    logarithmic(by_mean.xaxis)
    return figure


@drawing
def noise() -> Any:
    """Truncated against exact noise: the mean that the paper states, and where draws fall."""
    figure = new_figure((plots.DOUBLE, 2.3))
    means, draws = figure.subplots(1, 2)
    moments = [noise_for("weibull", name).log_moment(1 / SHAPES) for name in NOISES]
    means.plot(SHAPES, (moments[1] - moments[0]).exp(), **line_look(0))
    means.axhline(1, color="0.7", linewidth=0.8)
    means.set(xlabel="shape k", ylabel="truncated mean / exact mean")
    logarithmic(means.xaxis)
    uniform = torch.linspace(0.001, 0.999, 500)
    quantiles = noise_for("weibull", "exact").from_uniform(uniform)
    cut = noise_for("weibull", "truncated").from_uniform(uniform)
    lines(draws, {"exact": (uniform, quantiles.exp()), "truncated": (uniform, cut.exp())})
    draws.set(xlabel="quantile", ylabel="weight / lambda at k = 1", ylim=(0, 5))
    return figure


@drawing
def schedules() -> Any:
    """The weight of the KL under each schedule."""
    figure = new_figure((plots.SINGLE, 2.2))
    panel = figure.subplots()
    steps = torch.arange(0, 1001)
    curves = {}
    for name in ("constant", "linear", "sigmoid"):
        annealing = KLAnnealing(schedule=name, weight=KL_WEIGHT)  # type: ignore[arg-type]
        curves[name] = steps / 10, torch.tensor([annealing.at(int(s), 1000) for s in steps])
    lines(panel, curves, ncols=3, loc="upper center", handlelength=1.5)
    panel.set(xlabel="percent of training", ylabel="KL weight", ylim=(0, 1.24 * KL_WEIGHT))
    return figure


def main() -> None:
    """Writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "figures")
    out = parser.parse_args().out
    for make in (spread, priors, noise, schedules):
        print(plots.save(make(), out / f"settings_{make.__name__}.png"))


if __name__ == "__main__":
    main()
