"""Compares the posterior of the Weibull encoder with Gibbs sampling, with and without its paths.

    python paper/encoder_against_gibbs.py [--seeds 0 1] [--steps 2000] [--out FILE]

Draws gamma belief networks of one to three layers and data from them, trains the encoder with both
paths, with the upward or the downward path alone, and compares the marginals of all units of new
observations with those of the exact sampler. Writes the numbers and a figure.
"""

import statistics
import time
from dataclasses import asdict
from functools import partial
from typing import Any, get_args

import torch
from seeded_checks import parser_for, run

from babn_paper.gbn import GammaBeliefNetwork, WeibullNetwork, agreement, fit, sample_posterior
from babn_paper.gbn.comparison import importance_bound
from babn_paper.gbn.encoder import Paths
from babn_paper.plots.posteriors import encoder_agreement

UNITS, COUNTS = 3, 6
TRAINING, HELD_OUT = 4000, 100
ENCODER_DRAWS = 4000
GIBBS = {"draws": 1000, "warmup": 200, "chains": 4}


def make_network(layers: int, generator: torch.Generator) -> GammaBeliefNetwork:
    """A network with random weights; means of units and counts are of the order of one."""

    def weights(below: int) -> torch.Tensor:
        raw = torch.rand(below, UNITS, generator=generator, dtype=torch.float64) ** 2
        return raw / raw.sum(1, keepdim=True) * (1.0 if below == UNITS else 3.0)

    sizes = [*[UNITS] * (layers - 1), COUNTS]
    top = torch.ones(UNITS, dtype=torch.float64)
    return GammaBeliefNetwork(top, tuple(weights(size) for size in sizes), rate=1.0)


def compare(layers: int, seed: int, steps: int) -> list[dict[str, Any]]:
    """One record for each way to approximate the posterior, and one for the exact sampler."""
    generator = torch.Generator().manual_seed(1000 * layers + seed)
    network = make_network(layers, generator)
    _, training = network.draw(TRAINING, generator)
    truth, counts = network.draw(HELD_OUT, generator)
    found = sample_posterior(network, counts, **GIBBS, generator=generator).log_units
    half = GIBBS["chains"] // 2
    exact = [draws[:, :half].flatten(0, 1) for draws in found]
    others = [draws[:, half:].flatten(0, 1) for draws in found]
    base = {"layers": layers, "seed": seed}
    records = [{**base, "posterior": "Gibbs", "by_layer": by_layer(exact, others, truth)}]
    for paths in get_args(Paths):
        torch.manual_seed(seed)
        encoder = WeibullNetwork(network, paths=paths)
        started = time.perf_counter()
        fit(encoder, training, steps, batch_size=128, draws=1, seed=seed)
        seconds = time.perf_counter() - started
        with torch.no_grad():
            bound = encoder.elbo(counts, 200).mean().item()
        records.append(
            {
                **base,
                "posterior": paths,
                "elbo": bound,
                "importance_bound": importance_bound(encoder, counts, 1000).mean().item(),
                "seconds": round(seconds, 1),
                "by_layer": by_layer(exact, encoder.sample(counts, ENCODER_DRAWS), truth),
            }
        )
    return records


def by_layer(
    exact: list[torch.Tensor], approximate: list[torch.Tensor], truth: list[torch.Tensor]
) -> list[dict[str, Any]]:
    """Agreements from the layer nearest the prior to the one nearest the data."""
    return [asdict(agreement(*each)) for each in zip(exact, approximate, truth, strict=True)]


def table(records: list[dict[str, Any]]) -> list[str]:
    """Means over seeds and layers."""
    head = ("layers", "posterior", "KL", "|bias|", "spread", "cover 90 %", "ELBO", "importance")
    lines = ["".join(f"{name:>12}" for name in head)]
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["layers"], record["posterior"]), []).append(record)
    for (layers, name), group in groups.items():
        parts = [part for record in group for part in record["by_layer"]]
        numbers = [
            statistics.fmean(part[key] for part in parts)
            for key in ("kl", "absolute_bias", "spread")
        ]
        numbers.append(statistics.fmean(part["coverage"]["0.9"][0] for part in parts))
        for key in ("elbo", "importance_bound"):
            numbers.append(statistics.fmean(record.get(key, float("nan")) for record in group))
        lines.append(f"{layers:>12}{name:>12}" + "".join(f"{x:>12.3f}" for x in numbers))
    return lines


def main() -> None:
    """Compares every depth with every seed."""
    parser = parser_for(__file__, __doc__.splitlines()[0], seeds=[0, 1], steps=2000)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    cases = [
        (f"{layers} layers, seed {seed}", partial(compare, layers, seed, args.steps))
        for layers in args.layers
        for seed in args.seeds
    ]
    settings = {
        "training": TRAINING,
        "held_out": HELD_OUT,
        "encoder_draws": ENCODER_DRAWS,
        "gibbs": GIBBS,
    }
    run(args, cases, settings, encoder_agreement, table)


if __name__ == "__main__":
    main()
